"""Which model of a bundle is dumped. Imports nothing heavy, so that what cannot be dumped is refused at once."""

from __future__ import annotations

from ...bundle import Bundle, ModelSpec, Role
from ...errors import ParameterError


def choose_model(bundle: Bundle, model: str) -> tuple[Role, ModelSpec]:
    """model: `target`, `draft` for the first draft, or a draft's name.

    Raises `ParameterError` for a model that the bundle lacks, and for one whose layers keep states.
    """
    manifest = bundle.manifest
    name = manifest.first_draft if model == "draft" and model not in manifest.draft_names else model
    if name not in ("target", *manifest.draft_names):
        has = ", ".join(("target", *manifest.draft_names))
        raise ParameterError(f"the bundle has no model {model!r}; it has {has}")
    spec = manifest.target if name == "target" else manifest.draft_called(name).model
    if spec.has_states:
        raise ParameterError(f"layers of the {model} keep states, which cannot be dumped; dump a model without them")
    return "target" if name == "target" else "draft", spec
