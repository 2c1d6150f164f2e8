"""Compares the models on the device with the logits of transformers: masks, widths, a poisoned suffix, rollback."""

from __future__ import annotations

from collections.abc import Iterator

from specexport.bundle import Role
from specexport.engines.base import Decoder, OpenedDraft
from specexport.runtime.proofs.parity import arithmetic, measure
from specexport.runtime.proofs.reference_file import load_reference
from specexport.runtime.session import Session

from ..finding import Finding


def decoders(session: Session) -> Iterator[tuple[Role, Decoder]]:
    yield "target", session.engine.target
    if session.engine.draft is not None:
        yield "draft", session.engine.draft.decoder


def prove_parity(session: Session) -> Iterator[Finding]:
    """Run the bundle's own schedule on this engine."""
    manifest, engine = session.bundle.manifest, session.engine
    for role, decoder in decoders(session):
        reference = load_reference(session.bundle.path(manifest.pair[role].reference))
        kind = arithmetic(manifest.pair[role], manifest.contract)
        model = engine.draft if role == "draft" and engine.draft is not None else OpenedDraft(decoder)
        (proof,) = measure(model, reference, (engine.name, engine.dialect), role, kind)
        compared = f"{proof.rows} rows up to {proof.length} tokens"
        detail = f"{proof.measure} over {compared} (allowed {proof.limit})"
        yield Finding(f"parity, {role}", proof.passed, detail)
    session.reset()
