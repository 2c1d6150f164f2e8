"""The proofs, in the order in which one rests on another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..finding import Finding
from ..presets import Effort
from ..session_under_test import Subject
from .ladder import prove_ladder
from .parity import prove_parity
from .requests import prove_requests
from .rounds import prove_rounds
from .rules import prove_rules
from .samples import prove_samples


def prove(
    subject: Subject, prompts: Sequence[Sequence[int]], effort: Effort, walks: bool, sampled: bool
) -> Iterator[Finding]:
    """walks: also prove the ladder by transformers' own walk through the whole cache. sampled: also count samples."""
    yield from prove_parity(subject.session)
    if walks:
        yield from prove_ladder(subject)
    yield from prove_rules(subject.session)
    yield from prove_rounds(subject, prompts, effort)
    if sampled:
        yield from prove_samples(subject.session, prompts[0], effort)
    yield from prove_requests(subject.session, prompts[0])
