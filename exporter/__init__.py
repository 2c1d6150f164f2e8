"""From Hugging Face checkpoints to proven graphs. Needs the extra `export` (torch, transformers, onnxscript)."""
