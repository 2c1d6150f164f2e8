"""Backends: compile ONNX, run graphs. Each imports its own library, when it is asked for."""
