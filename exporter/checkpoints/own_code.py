"""Checkpoints that bring code of their own, as `auto_map` of config.json names it. None of it is ever run."""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ...errors import UnsupportedModelError

# In `auto_map`, by how much they say of the model. A tokenizer's code is refused where the tokenizer is loaded.
CLASSES = ("AutoModelForCausalLM", "AutoModel", "AutoConfig")


def own_code(folder: Path) -> str:
    """Which class of its own the checkpoint names for the model, empty for none."""
    named = _config(folder).get("auto_map")
    if not isinstance(named, dict):
        return ""
    return next((str(named[name]) for name in CLASSES if named.get(name)), "")


def refuse_own_code(source: str, folder: Path) -> None:
    """Raises `UnsupportedModelError` for a checkpoint that only code of its own can load."""
    if not (own := own_code(folder)):
        return
    config = _config(folder)
    model_type, names = config.get("model_type"), config.get("architectures")
    known = not isinstance(names, list) or not names or any(hasattr(transformers, str(name)) for name in names)
    if str(model_type) in CONFIG_MAPPING_NAMES and known:
        return
    found = f"{names[0]} ({model_type})" if isinstance(names, list) and names else model_type
    raise UnsupportedModelError(
        f"{source} needs code of its own ({own}), which is never run; expected an architecture that transformers has, "
        f"found {found}: give a checkpoint of such an architecture, or install a transformers that has this one"
    )


def note_of_own_code(source: str, folder: Path, model_type: str) -> str:
    """A note that transformers loads the checkpoint without its own code, empty if it has none."""
    if not (own := own_code(folder)):
        return ""
    return (
        f"{source} brings code of its own ({own}), which is not run: it is built as transformers' {model_type}, which "
        "may answer otherwise"
    )


def _config(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
