"""A request must not affect the next one, even if it was cancelled or its logits were NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from specexport.bundle import Role
from specexport.engines.base import Decoder
from specexport.errors import EngineError
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session

from ..finding import Finding
from .parity import decoders

PARAMS = SamplingParameters(max_new_tokens=24, stop_token_ids=())


def prove_requests(session: Session, prompt: Sequence[int]) -> Iterator[Finding]:
    session.reset()
    fresh = session.generate(prompt, PARAMS).tokens
    vocab_size = session.engine.target.vocab_size
    stranger = [(token + 1) % vocab_size for token in prompt]  # shares no prefix, so no rows can be reused
    for title, first in (("another prompt's", stranger), ("its own", prompt)):
        session.reset()
        _cancel(session, first)
        after = session.generate(prompt, PARAMS)
        # A draft that reads hidden states is given the last kept row's again.
        again = any(draft.model.reads is not None for draft in session.bundle.manifest.drafts)
        kept = 0 if first is stranger else len(prompt) - 1 - again
        reused = after.statistics.reused_tokens
        # States go on behind their last rows alone, which the stream may have left behind.
        passed = after.tokens == fresh and (reused == kept or (session.bundle.manifest.has_states and not reused))
        same = "the same" if after.tokens == fresh else "other"
        detail = f"{same} tokens as from nothing, {reused} rows kept"
        yield Finding(f"a request behind {title} cancelled stream", passed, detail)
    for role, decoder in decoders(session):
        if decoder.has_states:  # with the rows they are lost, so that no pass runs behind them
            continue
        yield _poisoned(session, role, decoder, prompt, fresh)
        decoder.overwrite_rows(0, 0.0)  # in any case the next proof starts with clean caches
    session.reset()


def _cancel(session: Session, prompt: Sequence[int]) -> None:
    stream = session.stream(prompt, PARAMS)
    for _ in range(2):
        next(stream)
    stream.close()


def _poisoned(session: Session, role: Role, decoder: Decoder, prompt: Sequence[int], fresh: tuple[int, ...]) -> Finding:
    """NaN in the cache, in the middle of a request, must end it with an error, and not affect the next request."""
    session.reset()
    stream = session.stream(prompt, PARAMS)
    next(stream)
    decoder.overwrite_rows(0, math.nan)
    try:
        for _ in stream:
            pass
        said = "no error"
    except EngineError as error:
        said = str(error)
    told = "gave nan as a logit" in said and session.bundle.manifest.pair[role].graphs[session.engine.dialect] in said
    try:
        recovered = session.generate(prompt, PARAMS).tokens == fresh
    except EngineError:
        recovered = False
    detail = (
        f"{'told' if told else f'not told ({said})'}, and the next request {'was right' if recovered else 'was wrong'}"
    )
    return Finding(f"logits that are no numbers, {role}", told and recovered, detail)
