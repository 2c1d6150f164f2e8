"""What an EAGLE-3, DFlash or DSpark checkpoint computes, and for which target, by its format and its tensors; and what
is taken by default for keys that its config.json lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedConfig

from ...bundle import MOST_SLOTS
from ...errors import UnsupportedModelError
from .block import BlockForm
from .eagle3 import Eagle3Form
from .fit import IDS, OTHER, Feedback, Published, Said, Target, architecture_of, find_taps
from .keys import FLAGS, NEOX, READ, ROTARY, check_block_keys, check_keys, layer_config

SLIDING = "sliding_attention"
BASE = 10_000.0  # of rotary embeddings, by default


@dataclass(frozen=True)
class Description:
    """forms: what it may be; several where libraries read a key in two ways. config: of the layers. neighbours: whether
    rotary embeddings turn neighbours in a head against each other (LFM2.5's DSpark), and not its halves.
    """

    forms: tuple[Eagle3Form | BlockForm, ...]
    config: PreTrainedConfig
    neighbours: bool


def describe(draft: Published, target: Target, said: Said) -> Description:
    """Raises `CheckpointError` for a config that cannot be read in one way alone, and for a draft of another target."""
    if draft.is_block:
        return _describe_blocks(draft, target, said)
    layer, config, format = check_keys(draft), draft.config, draft.format
    if layer.get("num_hidden_layers") == target.layers:  # as for Vicuna 13B, and NeMo's: the tensors tell its own
        layer = {
            **layer,
            "num_hidden_layers": len({name.split(".")[1] for name in draft.tensors if name[:7] == "layers."}),
        }
    layers, taps = layer_config(draft, layer), find_taps(draft, target, said)
    windows = _windows(draft, layer, {}, layers.num_hidden_layers) if format == "speculators" else ()
    feedbacks = (said.feedback,) if said.feedback else _feedbacks(format, config)
    form = Eagle3Form(
        taps[0],
        target.width,
        draft.vocab_size(target),
        feedbacks[0],
        joining=layers.num_hidden_layers if format == "deepspec" else 1,
        biased=frozenset(name.split(".")[-2] for name in draft.tensors if name.endswith(".bias")),
        windows=windows if any(windows) else (),
        **{flag: bool(config.get(flag)) for flag in FLAGS},
    )
    # AngelSlim trains all of its heads with 10000, whatever their configs have of the target.
    mine = architecture_of(config) == "Eagle3LlamaForCausalLM" and _theta(layers) != BASE
    forms = tuple(
        replace(form, taps=tap, feedback=feedback, theta=theta)
        for tap in taps
        for feedback in feedbacks
        for theta in ((None, BASE) if mine else (None,))
    )
    return Description(forms, layers, _turns_neighbours({**layer, **config}))


def _turns_neighbours(config: Mapping[str, Any]) -> bool:
    return any(config.get(key) is False for key in NEOX)


def _feedbacks(format: str, config: Mapping[str, Any]) -> tuple[Feedback, ...]:
    """speculators' `norm_output` says what goes back, and vLLM reads every draft so; SpecForge's, whose drafts have the
    original form, only says that the output embedding reads the norm.
    """
    if not config.get("norm_output"):
        return ("pre",)
    return ("post",) if format == "speculators" else ("post", "pre")


def _describe_blocks(draft: Published, target: Target, said: Said) -> Description:
    """Of DFlash and DSpark."""
    layer, keys = check_block_keys(draft)
    layers = layer_config(draft, layer)
    if layers.model_type != "qwen3":
        raise draft.unsupported("has no norms of queries and keys; expected the layers of Qwen3")
    (taps,) = find_taps(draft, target, said)
    numbers = {}
    for key, least, most in (("block_size", 2, MOST_SLOTS), ("mask_token_id", 0, 2**31)):
        if type(number := keys.get(key)) is not int or not least <= number <= most:
            raise draft.misfit(key, number, f"a whole number from {least} to {most}")
        numbers[key] = number
    if numbers["mask_token_id"] >= target.vocab_size:
        raise draft.wrong(
            f"masks with token {numbers['mask_token_id']}; the target has {target.vocab_size} tokens: {OTHER}"
        )
    cap = keys.get("final_logit_softcapping")
    if cap is not None and not (isinstance(cap, int | float) and cap > 0):
        raise draft.misfit("final_logit_softcapping", cap, "a number above 0")
    rank, width = map(draft.columns, ("markov_head.markov_w1.weight", "confidence_head.proj.weight"))
    windows = _windows(draft, layer, keys, layers.num_hidden_layers)
    form = BlockForm(
        taps,
        target.width,
        draft.vocab_size(target),
        numbers["block_size"],
        numbers["mask_token_id"],
        windows,
        _causal(keys, windows),
        bool(keys.get("sample_from_anchor", keys.get("shift_label", draft.format == "deepspec-blocks" or bool(rank)))),
        cap,
        any(name.endswith(".sinks") for name in draft.tensors),
        rank,
        keys.get("markov_head_type") == "gated",
        None if not width else "markov" if rank and width == layers.hidden_size + rank else "hidden",
        frozenset(name.split(".")[-2] for name in draft.tensors if name.endswith("_proj.bias") or name == "fc.bias"),
    )
    return Description((form,), layers, _turns_neighbours({**layer, **keys}))


def _causal(keys: Mapping[str, Any], windows: tuple[int, ...]) -> tuple[bool, ...]:
    """As the config says of all layers, else of those with a window, as vLLM, SGLang and SpecForge have it: z-lab's
    draft for Gemma 4 loses 6 % of its tokens otherwise (sglang #34524).
    """
    said = [keys[key] for key in ("is_causal", "causal") if keys.get(key) is not None]
    said += [False] if keys.get("sliding_window_non_causal") else []
    return tuple(bool(said[0] if said else window) for window in windows)


def _windows(draft: Published, layer: Mapping[str, Any], keys: Mapping[str, Any], count: int) -> tuple[int, ...]:
    kinds = layer.get("layer_types") or ["full_attention"] * count
    if keys.get("use_swa") and isinstance(kinds, list) and SLIDING not in kinds:  # ModelOpt's and MiMo's: every layer
        kinds = [SLIDING] * len(kinds)
    if layer.get("use_sliding_window") and not layer.get("layer_types"):
        raise draft.misfit("use_sliding_window", True, "its layer_types")
    if (
        not isinstance(kinds, list)
        or len(kinds) != count
        or any(kind not in ("full_attention", SLIDING) for kind in kinds)
    ):
        expected = f"{count} of full_attention and {SLIDING}"
        raise draft.misfit("layer_types", kinds, expected, UnsupportedModelError)
    window = keys.get("swa_window_size") or layer.get("sliding_window")
    if SLIDING in kinds and (type(window) is not int or window < 1):
        raise draft.misfit("sliding_window", window, "its rows")
    return tuple(int(window or 0) if kind == SLIDING else 0 for kind in kinds)


def absent_keys(draft: Published, description: Description, said: Said, target: PreTrainedConfig) -> Iterator[str]:
    """Keys that config.json lacks, each with its default; not those that the tensors tell. said: what needs no key."""
    (layer, inner), config = draft.parts, draft.config
    read = READ.get(draft.format, set())
    if IDS in read and not (said.taps or config.get(IDS) or inner.get(IDS)):
        yield f"{IDS} {','.join(map(str, description.forms[0].taps))}"
    for flag in ("norm_before_residual", "norm_output"):
        if flag in read and config.get(flag) is None and not (flag == "norm_output" and said.feedback):
            yield f"{flag} false"
    for key in ("hidden_act", "rms_norm_eps"):
        if layer.get(key) is None:
            yield f"{key} {getattr(description.config, key)}"
    if not _has_theta(layer):
        theirs = _theta(target)
        beside = "" if theirs in (None, _theta(description.config)) else f" (the target has {theirs:g})"
        yield f"rope_theta {_theta(description.config):g}{beside}"


def _has_theta(layer: Mapping[str, Any]) -> bool:
    places = [layer, *(layer[key] for key in ROTARY if isinstance(layer.get(key), Mapping))]
    places += [place["full_attention"] for place in places if isinstance(place.get("full_attention"), Mapping)]
    return any(place.get("rope_theta") is not None for place in places)


def _theta(config: PreTrainedConfig) -> float | None:
    """None where there is none, or one for each kind of layer."""
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    return float(theta) if isinstance(theta, int | float) else None
