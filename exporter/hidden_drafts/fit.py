"""Whether a draft is one for this target, by what config.json holds, the names and shapes of tensors and the
tables of its vocabulary.

Imports nothing slow, so that the draft of another target is refused at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...bundle import LAST, HiddenDraftKind
from ...errors import CheckpointError, ParameterError, UnsupportedModelError
from ...runtime.hub import name_of
from .kinds import FIRST, MIDDLE, Format

# What a drafted row reads of the row before: the last layer's output as it is, or after the last norm.
Feedback = Literal["pre", "post"]
# Which layers are tapped; `find_taps` says what the ids of each count.
IDS, DEEPSPEC_IDS = "eagle_aux_hidden_state_layer_ids", "target_layer_ids"
INNER, LAYER = "eagle_config", "transformer_layer_config"
BLOCK_INNER = "dflash_config"
BLOCK_IDS: dict[str, str] = {
    "zlab": DEEPSPEC_IDS,
    "deepspec-blocks": DEEPSPEC_IDS,
    "speculators-blocks": "aux_hidden_state_layer_ids",
}
# Beginnings of tensors' names: of EAGLE's format, and of ModelOpt's DSpark; ours.
NAMES = {MIDDLE: FIRST, "confidence_proj.": "confidence_head.proj."}
NAMES |= {f"{name}.": f"markov_head.{name}." for name in ("markov_w1", "markov_w2", "gate_proj")}
OTHER = "choose the draft made for this target"
GIVE_TAPS = "give --draft-taps"


@dataclass(frozen=True)
class Target:
    """What is known of the target before it is loaded. vocab_size: rows of its embedding."""

    layers: int
    width: int
    vocab_size: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Target | None:
        """config: what config.json holds; None where that leaves one to defaults."""
        text = config.get("text_config") or config
        named = map(text.get, ("num_hidden_layers", "hidden_size", "vocab_size"))
        sizes = [size for size in named if type(size) is int]
        return cls(*sizes) if len(sizes) == 3 else None


@dataclass(frozen=True)
class Said:
    """What the user says of a draft, against its config. taps: as of `HiddenDraft`, none as the config has them."""

    taps: tuple[int, ...] = ()
    feedback: Feedback | None = None


@dataclass(frozen=True, eq=False)
class Published:
    """A draft that reads the target, as a folder has it. config: what config.json holds. tensors: by the module's name
    of each its file, its name there and its shape.
    """

    source: str
    format: Format
    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[Path, str, list[int]]]

    def __str__(self) -> str:
        return self.source

    @property
    def is_block(self) -> bool:
        return self.format in BLOCK_IDS

    @property
    def kind(self) -> HiddenDraftKind:
        if self.format == "assistant":
            return "assistant"
        if not self.is_block:
            return "eagle3"
        heads = ("markov_head.", "confidence_head.")
        return "dspark" if any(name.startswith(heads) for name in self.tensors) else "dflash"

    @property
    def parts(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Of the config, those that describe the layers, and in ModelOpt's form the head, in z-lab's blocks."""
        layer = self.config.get(LAYER) if self.format in ("speculators", "speculators-blocks") else self.config
        key = BLOCK_INNER if self.is_block else INNER
        inner = (self.config.get(key) if self.format not in ("deepspec", "speculators") else None) or {}
        for place, name in ((layer, LAYER), (inner, key)):
            if not isinstance(place, Mapping):
                raise self.misfit(name, place, "an object, export or download it again")
        assert layer is not None
        return layer, inner

    def shape(self, name: str) -> list[int]:
        """Of a tensor, empty where there is none."""
        return self.tensors[name][2] if name in self.tensors else []

    def columns(self, name: str) -> int:
        """Of the matrix `name`, 0 where there is none. Raises `CheckpointError` for what is no matrix."""
        shape = self.shape(name) or [0, 0]
        if len(shape) != 2:
            raise self.wrong(f"has a {name} of {shape}; expected a matrix")
        return shape[1]

    def vocab_size(self, target: Target) -> int:
        """m. Raises `CheckpointError`."""
        inner = _object(self.config, BLOCK_INNER)
        size = self.config.get("draft_vocab_size") or inner.get("draft_vocab_size") or target.vocab_size
        if type(size) is not int:
            raise self.misfit("draft_vocab_size", size, "a number of tokens")
        return size

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.source} {what}", "draft")

    def unsupported(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.source} {what}", "draft")

    def misfit(
        self, key: str, value: object, expected: str, error: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        """Of a value in its config."""
        return error(f"{self.source}: {key} in config.json is {value!r}; expected {expected}", "draft")


def module_name(name: str) -> str:
    """What `Eagle3Draft` and `BlockDraft` call a tensor."""
    name = name.removeprefix("model.").removeprefix("logit_head.").replace("attention_sink_bias", "sinks")
    return next((own + name.removeprefix(theirs) for theirs, own in NAMES.items() if name.startswith(theirs)), name)


def find_taps(draft: Published, target: Target, said: Said) -> tuple[tuple[int, ...], ...]:
    """What it may tap, several where libraries read ids in two ways.

    Raises `CheckpointError` for a draft of another target.
    """
    (layer, inner), config = draft.parts, draft.config
    declared, words = config.get("num_target_layers") or target.layers, layer.get("vocab_size", target.vocab_size)
    if declared != target.layers:
        raise draft.wrong(f"is a draft of a target of {declared} layers; the target has {target.layers}: {OTHER}")
    if words != target.vocab_size:
        raise draft.wrong(f"is for a vocabulary of {words} tokens; the target's is {target.vocab_size}: {OTHER}")
    if any(tap != LAST and not 0 <= tap <= target.layers for tap in said.taps):
        given = ",".join(map(str, said.taps))
        raise ParameterError(f"--draft-taps is {given}; the target has 0 to {target.layers}", "draft_taps")
    taps = (_checked(draft, said.taps, target),) if said.taps else _taps(draft, inner, target)
    own = layer.get("hidden_size")
    _check_width(draft, len(taps[0]), config.get("target_hidden_size") or own, target.width)
    norm = draft.shape("norm.weight")
    if norm and type(own) is int and norm != [own]:
        raise draft.wrong(
            f"has a norm.weight of {norm[0]} numbers, and config.json says {own} (hidden_size); they are of "
            "two drafts, export or download both again"
        )
    stored, named = draft.shape("lm_head.weight"), draft.vocab_size(target)
    if draft.columns("lm_head.weight") and stored[0] != named:
        raise draft.wrong(
            f"has an output embedding of {stored[0]} tokens, and config.json says {named} (draft_vocab_size); "
            "they are of two drafts, export or download both again"
        )
    return taps


def made_for(config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Name and architecture of the target that it was trained with, where they are written."""
    verifier = _object(_object(config, "speculators_config"), "verifier")
    named = verifier.get("name_or_path") or config.get("target_model_name_or_path")
    return str(named) if named else None, architecture_of(verifier)


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The first that is named, where one is."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def _object(place: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return value if isinstance(value := place.get(key), Mapping) else {}


def note_of_another(draft: Published, target: str, architecture: str) -> tuple[str, ...]:
    """Of a draft that may be of another target. It changes no text, and the build measures what the target keeps."""
    named, theirs = made_for(draft.config)
    if theirs is not None and theirs != architecture:
        return (f"{draft} was made for a {theirs} ({named}), and {target} is a {architecture}",)
    if named is not None and not is_same(named, target):
        return (f"{draft} was made for {named}; that {target} is a copy of it is not checked",)
    return ()


def is_same(made_for: str, target: str) -> bool:
    """Whether both are called the same, whoever publishes them."""
    return _own_name(made_for) == _own_name(name_of(target))


def _own_name(source: str) -> str:
    """Without the publisher, and without what the name of a GGUF file says of its weights."""
    return re.sub(r"([.-](i?q\d\w*|b?f16|f32))?\.gguf$", "", source.split("/")[-1].lower())


def _taps(draft: Published, inner: Mapping[str, Any], target: Target) -> tuple[tuple[int, ...], ...]:
    """Indices of `hidden_states`: ids count what a layer reads or, one less, what it gives.

    The former at the top level (EAGLE, vLLM, speculators), the latter in `eagle_config` (SGLang, SpecForge, ModelOpt)
    and in DeepSpec's. By default a layer near the beginning, the middle and the end. Both where ids are in both places
    and do not agree, or are the defaults of the other count. Of blocks the latter, in speculators' format the former.
    """
    format, config, count = draft.format, draft.config, target.layers
    if draft.is_block:
        ids = _ids(draft, {**config, **inner}, BLOCK_IDS[format])
        if not ids:
            raise draft.wrong(f"has no {BLOCK_IDS[format]} in config.json; {GIVE_TAPS}")
        return (_checked(draft, ids if format == "speculators-blocks" else _after(ids), target),)
    reads, gives = (2, count // 2, count - 3), (1, count // 2 - 1, count - 4)  # the defaults of both
    outside: tuple[int, ...] = ()
    if format == "deepspec":
        inside = _ids(draft, config, DEEPSPEC_IDS)
        if not inside:
            raise draft.wrong(f"has no {DEEPSPEC_IDS} in config.json; {GIVE_TAPS}")
    else:
        outside, inside = _ids(draft, config, IDS), _ids(draft, inner, IDS)
    found = [ids for ids in (outside, _after(inside)) if ids] or [reads]
    if format != "deepspec" and inside == reads:
        found.append(inside)
    if format != "speculators" and outside == gives:
        found.append(_after(outside))
    if len({*map(len, found)}) > 1:
        raise draft.wrong(f"has {IDS} twice, of {len(found[0])} layers and of {len(found[1])}; {GIVE_TAPS}")
    taps = tuple(dict.fromkeys(_checked(draft, ids, target) for ids in found))
    if any(LAST in one for one in taps):
        raise draft.wrong(f"taps layer {count} of {count}, where libraries disagree on the norm; {GIVE_TAPS}")
    return taps


def _after(ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one + 1 for one in ids)


def _ids(draft: Published, place: Mapping[str, Any], key: str) -> tuple[int, ...]:
    ids = place.get(key) or ()
    if not isinstance(ids, Sequence) or not all(type(one) is int for one in ids):
        raise draft.misfit(key, ids, "a list of layers")
    return tuple(ids)


def _checked(draft: Published, taps: tuple[int, ...], target: Target) -> tuple[int, ...]:
    wrong = next((tap for tap in taps if tap != LAST and not 0 <= tap <= target.layers), None)
    if wrong is not None:
        raise draft.wrong(f"taps layer {wrong}; the target has {target.layers}: {OTHER}, or {GIVE_TAPS}")
    return tuple(LAST if tap == target.layers else tap for tap in taps)


def _check_width(draft: Published, taps: int, named: object, width: int) -> None:
    """named: the width of its target, by its config."""
    fused = draft.columns("fc.weight")  # numbers of the target that it reads
    if fused == taps * width:
        return
    if fused % width == 0 and fused / taps != named:
        count = fused // width
        raise draft.wrong(f"reads {count} layers of the target, and {taps} are named; {GIVE_TAPS}, {count} of them")
    raise draft.wrong(f"is a draft of width {fused // taps}; the target's is {width}: {OTHER}")
