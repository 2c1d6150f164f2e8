"""Manifests of earlier schemas, in the shape of the current one.

Schemas 7 to 9 had the first draft in fields of its own (`draft`, `draft_name`, `vocabulary`, `draft_vocabulary`), those
in addition to it in `more_drafts`, and proofs and references of target and first draft beside the models.
"""

from __future__ import annotations

from typing import Any

from ..errors import BundleError
from .manifest import MANIFEST, SCHEMA_VERSION

Row = dict[str, Any]


def upgraded(raw: Row) -> Row:
    """raw: parsed JSON of a supported schema. Raises `BundleError` where an older one is not what its schema says."""
    if raw["schema_version"] == SCHEMA_VERSION:
        return raw
    row: Row = {"draft_name": "draft", "more_drafts": {}} | raw
    try:
        references, proofs, first = row.pop("references"), row.pop("proofs"), row.pop("draft")
        name, shared, reduced = row.pop("draft_name"), row.pop("vocabulary"), row.pop("draft_vocabulary")
        others = row.pop("more_drafts").items()

        def model(role: str, spec: Row) -> Row:
            return spec | {"reference": references[role], "proofs": [one for one in proofs if one["role"] == role]}

        drafts = [_draft(name, model("draft", first), shared, reduced)] if first is not None else []
        for other, one in others:
            own = one["model"] | {"reference": one["reference"], "proofs": one["proofs"]}
            drafts.append(_draft(other, own, one["vocabulary"], None))
        # Graphs that changed logits, which no engine ran; their files are checked like any other.
        rules = [rule for rule in row["rules"] if rule["rule"] != "adjust"]
        target = model("target", row["target"])
    except (AttributeError, KeyError, TypeError):
        raise BundleError(
            f"{MANIFEST} is damaged: it is not what schema version {raw['schema_version']} has; build the bundle again"
        ) from None
    return row | {"schema_version": SCHEMA_VERSION, "target": target, "drafts": drafts, "rules": rules}


def _draft(name: str, model: Row, shared: Row | None, reduced: Row | None) -> Row:
    return {"name": name, "model": model, "shared_vocabulary": shared, "reduced_vocabulary": reduced}
