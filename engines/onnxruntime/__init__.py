"""The engines of ONNX Runtime's CPU and CUDA providers."""

import os

# Official builds of ONNX Runtime for Linux send usage data to Microsoft unless this is set before they are imported.
# Set it to 0 to allow that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
