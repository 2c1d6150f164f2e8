"""A causal language model to an ONNX graph with a static cache."""
