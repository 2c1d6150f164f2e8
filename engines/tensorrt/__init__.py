"""TensorRT and TensorRT-RTX."""
