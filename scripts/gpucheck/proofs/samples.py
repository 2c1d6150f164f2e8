"""L3 of docs/losslessness.md: compares samples of rounds on the device with the target's exact distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specexport.runtime.proofs.chi_squared import exact_joint, sample_session
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session

from ..finding import Finding
from ..presets import Effort

LENGTH = 2
WAYS = (
    SamplingParameters(temperature=1.0, verification="block"),
    SamplingParameters(temperature=1.0, verification="token"),
    SamplingParameters(temperature=0.7, top_k=6, top_p=0.9, verification="block"),
    SamplingParameters(temperature=1.0, speculate=False),
)


def prove_samples(session: Session, prompt: Sequence[int], effort: Effort) -> Iterator[Finding]:
    """Test samples. A false alarm occurs about once in a million times; the seeds are fixed, so the same build gives
    the same result.
    """
    chunk = session.bundle.manifest.contract.prompt_chunk
    for way in WAYS:
        expected = exact_joint(session.engine.target, prompt, way, LENGTH, chunk)
        session.reset()  # its cache was written without its knowledge
        found = sample_session(session, prompt, way, expected, effort.trials)
        title = f"{way.verification} verification" if way.speculate else "plain"
        kept = f", top-k {way.top_k}, top-p {way.top_p}" if way.top_k else ""
        detail = f"chi-squared {found.statistic:.1f} over {found.cells} cells and {found.trials} trials "
        detail += f"(a right one stays below {found.limit:.1f}), {found.mean_acceptance_length:.2f} tokens a round"
        yield Finding(f"samples at temperature {way.temperature}{kept}, {title}", found.passed, detail)
    session.reset()
