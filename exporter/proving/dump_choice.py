"""Which model of a bundle is dumped. Imports nothing heavy, so that what cannot be dumped is refused at once."""

from __future__ import annotations

from ...bundle import Bundle, Role
from ...errors import ParameterError


def choose_model(bundle: Bundle, model: str) -> tuple[Role, Bundle]:
    """Its role; and of a draft's name, the bundle with that draft as its first.

    Raises `ParameterError` for a model that the bundle lacks, and for one whose layers keep states.
    """
    role, bundle = _found(bundle, model)
    if bundle.manifest.models[role].has_states:
        raise ParameterError(
            f"layers of the {model} keep states, which cannot be dumped; dump a model without them", "model"
        )
    return role, bundle


def _found(bundle: Bundle, model: str) -> tuple[Role, Bundle]:
    manifest = bundle.manifest
    if model == "target":
        return "target", bundle
    if manifest.draft is None or (model != "draft" and model not in manifest.draft_names):
        raise ParameterError(
            f"the bundle has no model {model!r}; it has target{''.join(f', {name}' for name in manifest.draft_names)}",
            "model",
        )
    return "draft", bundle if model in ("draft", manifest.draft_name) else bundle.with_draft(model)
