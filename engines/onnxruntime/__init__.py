"""ONNX Runtime's CPU and CUDA providers."""
