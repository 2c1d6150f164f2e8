"""Manifests as earlier versions wrote them."""

from __future__ import annotations

from typing import Any


def as_schema(version: int, manifest: dict[str, Any]) -> dict[str, Any]:
    """`manifest`, of the current schema, in schema 7 (one draft, without defaults), 8 or 9 (several drafts)."""
    old = manifest | {"schema_version": version}
    models = [old["target"], *(draft["model"] for draft in old.pop("drafts"))]
    drafts = manifest["drafts"]
    own = [{key: model[key] for key in ("reference", "proofs")} for model in models]
    bare = [{key: value for key, value in model.items() if key not in own[0]} for model in models]
    first = drafts[0] if drafts else {"name": "draft", "shared_vocabulary": None}
    old |= {"target": bare[0], "draft": bare[1] if drafts else None}
    old |= {"vocabulary": first["shared_vocabulary"], "draft_vocabulary": {"kept_tokens": 3} if drafts else None}
    old["references"] = dict(zip(("target", "draft"), (one["reference"] for one in own), strict=False))
    old["proofs"] = [proof for one in own[:2] for proof in one["proofs"]]
    more = {
        draft["name"]: {"model": model, "vocabulary": draft["shared_vocabulary"], **rest}
        for draft, model, rest in zip(drafts[1:], bare[2:], own[2:], strict=True)
    }
    if version > 7:
        old |= {"draft_name": first["name"], "more_drafts": more}
    if version < 9:
        old.pop("defaults", None)
    return old
