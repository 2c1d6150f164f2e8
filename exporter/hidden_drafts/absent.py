"""Keys that the config.json of a draft lacks, and what is taken instead; not those that the tensors tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

from .fit import IDS, Said, parts
from .formats import Description
from .keys import READ, ROTARY
from .kinds import BlockFormat, Format, is_block


def absent_keys(
    source: str,
    format: Format | BlockFormat,
    config: Mapping[str, Any],
    description: Description,
    said: Said,
    target: PreTrainedConfig,
) -> Iterator[str]:
    """Each with its default. config: what config.json holds. said: what needs no key."""
    layer, inner = parts(source, format, config)
    read = set[str]() if is_block(format) else READ[format]
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
