"""Compares the verification rules on the device with their numpy implementation."""

from __future__ import annotations

from collections.abc import Iterator

from specexport.bundle import RuleSpec
from specexport.runtime.proofs.rule_parity import measure_rule
from specexport.runtime.session import Session

from ..finding import Finding


def prove_rules(session: Session) -> Iterator[Finding]:
    """Prove every rule that the engine has. Rounds on the device need all of them."""
    manifest, engine = session.bundle.manifest, session.engine
    if engine.open_graph is None:
        return
    lacking, compared = [], 0
    for spec in manifest.rules:
        run = engine.open_graph(session.bundle.path(spec.graph))
        if run is None:
            lacking += [_name(spec)] if engine.rounds is not None else []
            continue
        proof = measure_rule(run, spec, manifest.target.vocab_size)
        compared += 1
        if not proof.passed:
            detail = (
                f"{proof.wrong} of {proof.cases} cases differ from the numpy rule, numbers by {proof.max_error:.1g}"
            )
            yield Finding(f"rule {_name(spec)}", False, detail)
    yield Finding(
        "rules",
        not lacking,
        f"{compared} compiled rules compared" + (f", missing: {', '.join(lacking)}" if lacking else ""),
    )


def _name(spec: RuleSpec) -> str:
    return f"{spec.rule} of {spec.num_draft_tokens}"
