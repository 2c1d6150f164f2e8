"""The proofs, each after those that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..apart import one_line
from ..finding import Finding
from ..presets import Effort
from ..session_under_test import Subject
from .ladder import prove_ladder
from .parity import prove_parity
from .requests import prove_requests
from .rounds import prove_rounds
from .rules import prove_rules
from .samples import prove_samples

Prove = Callable[[], Iterator[Finding]]


def prove(
    subject: Subject,
    prompts: Sequence[Sequence[int]],
    effort: Effort,
    walks: bool,
    sampled: bool,
    begin: Callable[[str], None] = lambda name: None,
) -> Iterator[Finding]:
    """Yield the findings of all proofs.

    walks: also prove the ladder against transformers, over the whole cache. sampled: also test samples. begin: called
    with the name of each proof before it runs. A proof that ends in an error has failed; the others continue.
    """
    session = subject.session
    proofs: dict[str, Prove] = {
        "parity": lambda: prove_parity(session),
        "rules": lambda: prove_rules(session),
        **({"ladder": lambda: prove_ladder(subject)} if walks else {}),
        "rounds": lambda: prove_rounds(subject, prompts, effort),
        "requests": lambda: prove_requests(session, prompts[0]),
        **({"samples": lambda: prove_samples(session, prompts[0], effort)} if sampled else {}),
    }
    for name, findings in proofs.items():
        begin(name)
        try:
            yield from findings()
        except Exception as error:
            yield Finding(name, False, one_line(error))
