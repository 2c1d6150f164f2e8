"""Weights of a checkpoint that are no part of the model: named where that is right, else refused.

transformers leaves out every weight that it has no place for, and builds what config.json says of the others. What its
class of the model says to ignore is not looked at here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ...errors import CheckpointError
from .config import rotary
from .source import Headers, read_headers, read_tensor

SHOWN = 3
# Layers for multi-token prediction: modules of this name, or a layer after the last that has this projection.
PREDICTS = re.compile(r"(.*?\b|)(mtp|nextn)[\w-]*(?=\.)")
JOINS = "eh_proj"
LAYER = re.compile(r"(.*?\b(?:layers|h|blocks)\.(\d+))\.")
OTHER_INPUTS = re.compile(
    r"(.*?\.|)(embed_)?(vision|visual|video|image|img|audio|speech|multi_?modal|mm|talker|token2wav|code2wav)(_\w+)?(?=\.|$)"
)
# Tables that are no longer stored, since they follow from the config.
FREQUENCIES = "inv_freq"
TABLES = re.compile(r"(.*\.)?(inv_freq|position_ids)")
# Causal masks; a bias of the same name has one dimension.
MASKS = re.compile(r".*(attn|attention)\.(bias|masked_bias|causal_mask)")


def check_all_read(
    source: str, model: PreTrainedModel, config: Any, info: dict[str, Any], files: Sequence[Path]
) -> tuple[str, ...]:
    """What was rightly left out of the model, as notes.

    config: of the whole checkpoint. info: what `from_pretrained` says of the loading. Raises `CheckpointError` for
    weights that have another shape, and for those that have no place.
    """
    check_shapes(source, info, "config.json")
    _check_tied(source, model)
    stored = read_headers(files)
    _check_frequencies(source, model, config, stored)
    unexpected: Collection[str] = info["unexpected_keys"]
    masks = _masks(unexpected, stored)
    groups: Counter[str] = Counter()
    wrong = []
    for name in sorted(unexpected):
        if group := _group(name, model, config, unexpected) or (name in masks and "causal masks"):
            groups[group] += 1
        else:
            wrong.append(name)
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise CheckpointError(
            f"{source} has {len(wrong)} weight{'s' * (len(wrong) > 1)} that the model of config.json has no place for: "
            f"{', '.join(wrong[:SHOWN])}{more}; expected the config that they were trained with, export or download "
            "both again"
        )
    return tuple(f"left out: {count} weight{'s' * (count > 1)} of {group}" for group, count in groups.items())


def check_shapes(source: str, info: dict[str, Any], place: str) -> None:
    """Raises `CheckpointError` for weights of another shape than `place` says. info: as for `check_all_read`."""
    if mismatched := sorted(info["mismatched_keys"]):
        name, there, expected = mismatched[0]
        raise CheckpointError(
            f"{source}: {len(mismatched)} weights have another shape than {place} says; the first is {name}, found "
            f"{list(there)}, expected {list(expected)}; they are of two models, export or download both again"
        )


def _group(name: str, model: PreTrainedModel, config: Any, names: Collection[str]) -> str:
    """The part of the checkpoint that a weight belongs to, where the text model is whole without it; else empty."""
    if match := _outside_layers(PREDICTS, name, config):
        return f"multi-token prediction, {match[0]}.*"
    if _beyond(name, config) and (layer := LAYER.match(name)) and any(f"{layer[1]}.{JOINS}" in n for n in names):
        return f"multi-token prediction, {layer[1]}.*"
    if match := _outside_layers(OTHER_INPUTS, name, config):
        return f"parts that read no text, {match[0]}.*"
    if match := TABLES.fullmatch(name):
        return f"tables that follow from the config, *.{match[2]}"
    if part := _beside_text(name, model, config):
        return f"parts beside the text model, {name.partition(part)[0]}{part}.*"
    return ""


def _beside_text(name: str, model: PreTrainedModel, config: Any) -> str:
    """The part of a larger model that the weight belongs to, where that is not the text model's; else empty."""
    part = name.removeprefix(f"{model.base_model_prefix}.").partition(".")[0]
    return part if config.get_text_config() is not config and part not in _parts(model) else ""


def _outside_layers(part: re.Pattern[str], name: str, config: Any) -> re.Match[str] | None:
    """Its match, unless it is within a layer of the text model, which reads all that its layers have."""
    match = part.match(name)
    within = match is not None and LAYER.match(match[0]) and not _beyond(name, config)
    return None if within else match


def _parts(model: PreTrainedModel) -> set[str]:
    children = (name for one in (model, model.base_model) for name, _ in one.named_children())
    return {*children, "language_model", "text_model"}


def _beyond(name: str, config: Any) -> bool:
    """Whether the weight is of a layer that the config does not count."""
    layer, count = LAYER.match(name), getattr(config.get_text_config(), "num_hidden_layers", None)
    return layer is not None and isinstance(count, int) and int(layer[2]) >= count


def _masks(names: Collection[str], stored: Headers) -> set[str]:
    """Those of old checkpoints, which follow from the config."""
    wanted = [name for name in names if MASKS.fullmatch(name)]
    matrices = [key for key, (_, shape) in stored.items() if len(shape) != 1]
    # The model's name of a weight may have one more prefix than the file's.
    return {name for name in wanted for key in matrices if name.endswith(key) or key.endswith(name)}


def _check_frequencies(source: str, model: PreTrainedModel, config: Any, stored: Headers) -> None:
    """Raises `CheckpointError` where the checkpoint was trained with other rotary frequencies than its config gives."""
    ours = [buffer.float() for name, buffer in model.named_buffers() if name.endswith(FREQUENCIES)]
    bases = [rope["rope_theta"] for rope in rotary(config.get_text_config()) if rope.get("rope_theta")]
    for name, (path, _) in stored.items():
        of_text = not (_outside_layers(OTHER_INPUTS, name, config) or _beside_text(name, model, config))
        if not (of_text and name.endswith(FREQUENCIES)):
            continue
        theirs = read_tensor(path, name).float()
        # Those of old checkpoints are without the scaling of positions.
        unscaled = [base ** (-torch.arange(len(theirs)) / len(theirs)) for base in bases]
        if not any(_close(theirs, other) for other in (*ours, *unscaled)):
            raise CheckpointError(
                f"{source}: {name} ends in {theirs[-1]:.3g}, other rotary frequencies than those of config.json, which "
                f"end in {(ours or unscaled or [theirs])[0][-1]:.3g}; expected the config that the weights were "
                "trained with"
            )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0.02, atol=0.0)  # stored in bf16, perhaps


def _check_tied(source: str, model: PreTrainedModel) -> None:
    """Raises `CheckpointError` for two different weights where the config says that both are one."""
    expected = model.get_expanded_tied_weights_keys(all_submodels=True)
    apart = sorted(expected.keys() - model.all_tied_weights_keys.keys())
    if apart:
        raise CheckpointError(
            f"{source}: {apart[0]} is not {expected[apart[0]]}, though tie_word_embeddings in config.json says that "
            "both are one; set it to false to use both, or remove the weights that were not trained"
        )
