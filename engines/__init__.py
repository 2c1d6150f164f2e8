"""Backends: compile ONNX graphs and run them. Each imports its own library, only when it is used."""
