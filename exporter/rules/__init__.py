"""The verification rules as ONNX graphs."""
