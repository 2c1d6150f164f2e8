"""Compares the verification rules on the device with their numpy implementation."""

from __future__ import annotations

from collections.abc import Iterator

from specexport.engines.rules import rule_specs
from specexport.runtime.proofs.rule_parity import measure_rule
from specexport.runtime.session import Session

from ..finding import Finding


def prove_rules(session: Session) -> Iterator[Finding]:
    """Prove every rule that the engine has."""
    manifest, engine = session.bundle.manifest, session.engine
    if engine.open_rule is None:
        return
    compared = 0
    for spec in rule_specs(manifest.contract.max_draft_tokens):
        proof = measure_rule(engine.open_rule(spec), spec, manifest.target.vocab_size)
        compared += 1
        if not proof.passed:
            detail = (
                f"{proof.wrong} of {proof.cases} cases differ from the numpy rule, numbers by {proof.max_error:.1g}"
            )
            yield Finding(f"rule {spec.name}", False, detail)
    yield Finding("rules", True, f"{compared} rules compared")
