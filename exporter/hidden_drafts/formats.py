"""What an EAGLE-3 checkpoint computes, by the keys of its format and its tensors; `block_formats.py` has DFlash's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedConfig

from .block import BlockForm
from .eagle3 import Eagle3Form
from .fit import Feedback, Said, Target, draft_vocab, find_taps
from .keys import FLAGS, check_keys, layer_config
from .kinds import Format


@dataclass(frozen=True)
class Description:
    """forms: what it may be; several where libraries read a key in two ways. config: of the layers."""

    forms: tuple[Eagle3Form | BlockForm, ...]
    config: PreTrainedConfig


def describe(
    source: str, format: Format, config: Mapping[str, Any], shapes: Mapping[str, list[int]], target: Target, said: Said
) -> Description:
    """config: what config.json holds. shapes: of the tensors, by the module's names.

    Raises `CheckpointError` for a config that cannot be read in one way alone, and for a draft of another target.
    """
    layers = layer_config(source, check_keys(source, format, config), shapes)
    taps = find_taps(source, format, config, shapes, target, said)
    feedbacks = (said.feedback,) if said.feedback else _feedbacks(format, config)
    form = Eagle3Form(
        taps[0],
        target.width,
        draft_vocab(source, config, target),
        feedbacks[0],
        joining=layers.num_hidden_layers if format == "deepspec" else 1,
        biased=frozenset(name.split(".")[-2] for name in shapes if name.endswith(".bias")),
        **{flag: bool(config.get(flag)) for flag in FLAGS},
    )
    forms = tuple(replace(form, taps=tap, feedback=feedback) for tap in taps for feedback in feedbacks)
    return Description(forms, layers)


def _feedbacks(format: Format, config: Mapping[str, Any]) -> tuple[Feedback, ...]:
    """speculators' `norm_output` says what goes back, and vLLM reads every draft so; SpecForge's, whose drafts have the
    original form, only says that the output embedding reads the norm.
    """
    if not config.get("norm_output"):
        return ("pre",)
    return ("post",) if format == "speculators" else ("post", "pre")
