"""The engines TensorRT and TensorRT-RTX."""
