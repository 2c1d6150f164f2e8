"""What `build` needs beside the runtime."""

from __future__ import annotations

from importlib.util import find_spec

EXPORTER_EXTRA = "pip install 'specexport[export]'"


def missing_packages() -> list[str]:
    return [
        name for name in ("torch", "transformers", "safetensors", "onnx_ir", "onnxscript") if find_spec(name) is None
    ]
