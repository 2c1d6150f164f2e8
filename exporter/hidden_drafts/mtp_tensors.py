"""Which tensors of a checkpoint are its MTP layer, by their names.

Imports nothing slow, so that `--draft mtp` of a target that has none is refused at once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import CheckpointError
from ..checkpoints.source import INSTEAD

MTP = "mtp"
# Where the layer is: `mtp.*` (Qwen, Nemotron-H), `mtp_layers.0.*` (MiMo), or after the N layers of the model
# (DeepSeek, GLM).
PLACE = re.compile(r"(?:.*?\.)??(?:mtp\.(?:layers\.(\d+)\.)?|mtp_layers\.(\d+)\.|layers\.(\d+)\.)(.+)")
AFTER = 3
# ERNIE's number comes after the part: `mtp_block.0.*`, `mtp_emb_norm.0.*`.
ERNIE = re.compile(r"mtp_(?:block|(emb_norm|hidden_norm|linear_proj))\.(\d+)\.")
# What the families call its parts. All other tensors are the block's.
NAMES = {
    "enorm": ("enorm", "pre_fc_norm_embedding", "token_layernorm", "emb_norm"),
    "hnorm": ("hnorm", "pre_fc_norm_hidden", "hidden_layernorm", "hidden_norm"),
    "eh_proj": ("eh_proj", "fc", "input_proj", "linear_proj"),
    "norm": ("shared_head.norm", "final_layernorm"),
}
PARTS = {f"{name}.weight": part for part, names in NAMES.items() for name in names}
# Beside the block's layers; within one, it is the block's (Nemotron-H).
BESIDE = PARTS | {"norm.weight": "norm"}
# Takes the hidden states before the embedding.
HIDDEN_FIRST = "input_proj.weight"
# The target's embedding and head, stored again.
AGAIN = ("embed_tokens.weight", "shared_head.head.weight")


@dataclass(frozen=True)
class Stored:
    """An MTP layer in a checkpoint: names of tensors, by part and by their names in the block's decoder.

    files: by tensor. layers: how many the block has. dense: whether it has no experts. elements: in all of them.
    """

    parts: Mapping[str, str]
    block: Mapping[str, str]
    files: Mapping[str, Path]
    layers: int
    dense: bool
    elements: int
    hidden_first: bool


def is_mtp(source: str) -> bool:
    """Whether a `--draft` means the target's own layer: unless there is a folder of this name."""
    return source == MTP and not Path(source).exists()


def _number_first(match: re.Match[str]) -> str:
    return f"mtp_layers.{match[2]}." + (f"{match[1]}." if match[1] else "")


def _find_layers(source: str, names: Iterable[str], count: int) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What is beside the layers, and by layer in their order: names of tensors by what comes after the layer's own.

    count: of the model's own layers. A layer after them is one that has a projection: towers of other inputs have
    numbers as high. Raises `CheckpointError` unless one layer, or what is beside, has a projection.
    """
    beside, numbered = {}, defaultdict[tuple[bool, int], dict[str, str]](dict)
    for name in names:
        if match := PLACE.fullmatch(ERNIE.sub(_number_first, name)):
            *numbers, rest = match.groups()
            number = next((int(number) for number in numbers if number), None)
            if number is None:
                beside[rest] = name
            elif match[AFTER] is None or number >= count:
                numbered[match[AFTER] is not None, number][rest] = name
    layers = [layer for (after, _), layer in sorted(numbered.items()) if not after or PARTS.keys() & layer.keys()]
    projections = sum(PARTS.get(rest) == "eh_proj" for layer in (beside, *layers) for rest in layer)
    if not projections:
        raise refused(
            f"{source} has no MTP layer (no mtp.* or model.layers.{count}.* weights); give a draft of its own, or "
            "leave --draft out to use prompt lookup"
        )
    if projections > 1:
        raise several(source, projections)
    return beside, layers


def find_stored(source: str, stored: Mapping[str, tuple[Path, list[int]]], count: int, width: int) -> Stored:
    """stored: file and shape by tensor. count, width: of the model's own layers. Raises `CheckpointError`."""
    beside, layers = _find_layers(source, stored, count)
    parts, block = {BESIDE[rest]: name for rest, name in beside.items() if rest in BESIDE}, {}
    if unread := sorted(name for rest, name in beside.items() if rest not in BESIDE):
        raise refused(f"{source} has {unread[0]}, which no MTP layer that is known reads")
    for number, layer in enumerate(layers):
        for rest, name in layer.items():
            if rest in PARTS:
                parts[PARTS[rest]] = name
            elif rest not in AGAIN:
                block[f"layers.{number}.{rest}"] = name
    if any(ERNIE.search(name) for name in parts.values()):  # its block ends in the model's own norm
        parts.update(("norm", name) for name in stored if name.endswith("model.norm.weight"))
    for part, shape in {"enorm": [width], "hnorm": [width], "eh_proj": [width, 2 * width], "norm": [width]}.items():
        if part not in parts:
            named = ", ".join(name for name, theirs in BESIDE.items() if theirs == part)
            raise refused(
                f"the MTP layer of {source} has none of {named}; expected one, export or download the target again"
            )
        if (theirs := stored[parts[part]][1]) != shape:
            raise refused(
                f"{parts[part]} of {source} is {theirs}; expected {shape}, export or download the target again"
            )
    elements = sum(math.prod(stored[name][1]) for name in (*parts.values(), *block.values()))
    files = {name: path for name, (path, _) in stored.items()}
    dense = not any(".experts." in name for name in block)
    return Stored(parts, block, files, len(layers), dense, elements, parts["eh_proj"].endswith(HIDDEN_FIRST))


def several(source: str, count: int) -> CheckpointError:
    return refused(f"{source} has {count} MTP layers, each with a cache of its own; expected one that is recycled")


def of_gguf(source: str) -> CheckpointError:
    return refused(f"{source} is a GGUF file, whose MTP layer is not read; {INSTEAD}")


def refused(reason: str) -> CheckpointError:
    return CheckpointError(f"--draft mtp: {reason}", "draft")
