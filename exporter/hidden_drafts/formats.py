"""What an EAGLE-3 checkpoint computes, and for which target, by the keys of its format and its tensors.

`block_formats.py` has those of DFlash and DSpark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedConfig

from ...errors import CheckpointError
from .base import LAST
from .block import BlockForm
from .eagle3 import Eagle3Form, Feedback
from .keys import DEEPSPEC_IDS, FLAGS, IDS, check_keys, layer_config
from .kinds import FIRST, MIDDLE, Format

OTHER = "choose the draft made for this target"
GIVE_TAPS = "give --draft-taps"


@dataclass(frozen=True)
class Target:
    """What is known of the target before it is loaded. vocab_size: rows of its embedding."""

    layers: int
    width: int
    vocab_size: int


@dataclass(frozen=True)
class Said:
    """What the user says of a draft, against its config. taps: as of `HiddenDraft`, none as the config has them. copy:
    the target is a copy of the one that the draft was made for, whatever its name.
    """

    taps: tuple[int, ...] = ()
    feedback: Feedback | None = None
    copy: bool = False


@dataclass(frozen=True)
class Description:
    """forms: what it may be; several where libraries read a key in two ways. config: of the layers. made_for,
    architecture: of the target that it was trained with, where they are written.
    """

    forms: tuple[Eagle3Form | BlockForm, ...]
    config: PreTrainedConfig
    made_for: str | None
    architecture: str | None


def module_name(name: str) -> str:
    """What `Eagle3Draft` calls a tensor."""
    return name.replace(MIDDLE, FIRST, 1) if name.startswith(MIDDLE) else name


def describe(
    source: str, format: Format, config: Mapping[str, Any], shapes: Mapping[str, list[int]], target: Target, said: Said
) -> Description:
    """config: what config.json holds. shapes: of the tensors, by the module's names.

    Raises `CheckpointError` for a config that cannot be read in one way alone, and for a draft of another target.
    """
    layer, inner = check_keys(source, format, config)
    layers = layer_config(source, layer, shapes)
    check_target(source, config, layers.vocab_size, target)
    taps = (checked_taps(source, said.taps, target),) if said.taps else _taps(source, format, config, inner, target)
    check_width(source, shapes.get("fc.weight", [0, 0])[-1], len(taps[0]), target.width)
    stored, named = shapes.get("lm_head.weight"), config.get("draft_vocab_size") or target.vocab_size
    if stored and stored[0] != named:
        raise wrong(
            f"{source} has an output embedding of {stored[0]} tokens, and config.json says {named} (draft_vocab_size); "
            "they are of two drafts, download both again"
        )
    feedbacks = (said.feedback,) if said.feedback else _feedbacks(format, config)
    form = Eagle3Form(
        taps[0],
        target.width,
        int(named),
        feedbacks[0],
        joining=layers.num_hidden_layers if format == "deepspec" else 1,
        biased=frozenset(name.split(".")[-2] for name in shapes if name.endswith(".bias")),
        **{flag: bool(config.get(flag)) for flag in FLAGS},
    )
    forms = tuple(replace(form, taps=tap, feedback=feedback) for tap in taps for feedback in feedbacks)
    return Description(forms, layers, *made_for(config))


def made_for(config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Name and architecture of the target that a draft was trained with, where they are written."""
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    name = verifier.get("name_or_path") or config.get("target_model_name_or_path")
    return name, next(iter(verifier.get("architectures") or ()), None)


def check_target(source: str, config: Mapping[str, Any], vocab_size: int, target: Target) -> None:
    """Raises `CheckpointError` where the draft says that it is of a target of other sizes."""
    declared = config.get("num_target_layers") or target.layers
    if declared != target.layers:
        raise wrong(f"{source} is a draft of a target of {declared} layers; the target has {target.layers}: {OTHER}")
    if vocab_size != target.vocab_size:
        raise wrong(
            f"{source} is a draft for a vocabulary of {vocab_size} tokens; the target's is {target.vocab_size}: {OTHER}"
        )


def _taps(
    source: str, format: Format, config: Mapping[str, Any], inner: Mapping[str, Any], target: Target
) -> tuple[tuple[int, ...], ...]:
    """Indices of `hidden_states`: ids count what a layer reads or, one less, what it gives.

    The former at the top level (EAGLE, vLLM, speculators), the latter in `eagle_config` (SGLang, SpecForge, ModelOpt)
    and in DeepSpec's. By default a layer near the beginning, the middle and the end. Both where ids are in both places
    and do not agree, or are the defaults of the other count.
    """
    count = target.layers
    reads, gives = (2, count // 2, count - 3), (1, count // 2 - 1, count - 4)  # the defaults of both
    outside: tuple[int, ...] = ()
    if format == "deepspec":
        inside = layer_ids(source, config, DEEPSPEC_IDS)
        if not inside:
            raise wrong(f"{source}: {DEEPSPEC_IDS} is missing in config.json; {GIVE_TAPS}")
    else:
        outside, inside = layer_ids(source, config, IDS), layer_ids(source, inner, IDS)
    found = [ids for ids in (outside, after(inside)) if ids] or [reads]
    if format != "deepspec" and inside == reads:
        found.append(inside)
    if format != "speculators" and outside == gives:
        found.append(after(outside))
    if len({*map(len, found)}) > 1:
        raise wrong(f"{source} has {IDS} twice, of {len(found[0])} layers and of {len(found[1])}; {GIVE_TAPS}")
    taps = tuple(dict.fromkeys(checked_taps(source, ids, target) for ids in found))
    if any(LAST in one for one in taps):
        raise wrong(f"{source} taps layer {count} of {count}, where libraries disagree on the norm; {GIVE_TAPS}")
    return taps


def after(ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one + 1 for one in ids)


def layer_ids(source: str, place: Mapping[str, Any], key: str) -> tuple[int, ...]:
    ids = place.get(key) or ()
    if not isinstance(ids, Sequence) or not all(type(one) is int for one in ids):
        raise wrong(f"{source}: {key} in config.json is {ids!r}; expected a list of layers")
    return tuple(ids)


def checked_taps(source: str, taps: tuple[int, ...], target: Target) -> tuple[int, ...]:
    beyond = next((tap for tap in taps if tap != LAST and not 0 <= tap <= target.layers), None)
    if beyond is not None:
        raise wrong(f"{source} taps layer {beyond}; the target has {target.layers}: {OTHER}, or {GIVE_TAPS}")
    return tuple(LAST if tap == target.layers else tap for tap in taps)


def check_width(source: str, fused: int, taps: int, width: int) -> None:
    """fused: how many numbers of the target it reads."""
    if fused == taps * width:
        return
    if fused % width == 0:
        raise wrong(f"{source} reads {fused // width} layers of the target, and {taps} are named; {GIVE_TAPS}")
    raise wrong(f"{source} is a draft of width {fused // taps}; the target's is {width}: {OTHER}")


def _feedbacks(format: Format, config: Mapping[str, Any]) -> tuple[Feedback, ...]:
    """speculators' `norm_output` says what goes back, and vLLM reads every draft so; SpecForge's, whose drafts have the
    original form, only says that the output embedding reads the norm.
    """
    if not config.get("norm_output"):
        return ("pre",)
    return ("post",) if format == "speculators" else ("post", "pre")


def wrong(message: str) -> CheckpointError:
    return CheckpointError(message, "draft")
