"""Constrained output of the demo pair: valid where it stops, a beginning where it is cut, the same with drafts.

A sample of the schemas; `tests/serve/test_constrained.py` asks all 200 over HTTP, and
`tests/runtime/grammar/test_sessions.py` of doubles.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from specexport import Generation, Grammar, Session, load
from support.schemas import random_schema

pytest.importorskip("llguidance")
pytestmark = pytest.mark.nightly
PROMPT = "# A record, as JSON:\nrecord = "
WAYS = [("model", 1), ("model", 4), ("ngram", 3), ("suffix+model", 4)]


@pytest.fixture(scope="module")
def session(demo_bundle: Path) -> Iterator[Session]:
    with load(demo_bundle) as session:
        yield session


def check_end(session: Session, seed: int, grammar: Grammar, generation: Generation) -> None:
    stops = session.bundle.manifest.text.stop_token_ids
    state = session._grammars.compile(grammar)
    for token in generation.tokens:
        if token in stops:
            assert (state.accepting, generation.tokens[-1]) == (True, token)
            break
        assert state.allowed()[token]
        state.advance(token)
    if generation.finish_reason == "stop":
        jsonschema.validate(json.loads(generation.text), random_schema(seed))
    else:
        assert (generation.finish_reason, state.done) == ("length", False)


def test_a_sample_of_schemas(session: Session) -> None:
    found: Counter[str] = Counter()
    for place, seed in enumerate(range(0, 200, 8)):
        grammar = Grammar.json_schema(random_schema(seed))
        drafter, k = WAYS[place % len(WAYS)]
        limit = 6 if place % 5 == 4 else 150
        options = {"grammar": grammar, "max_new_tokens": limit, "drafter": drafter, "num_draft_tokens": k}
        plain = session.generate(PROMPT, grammar=grammar, max_new_tokens=limit, speculate=False)
        greedy = session.generate(PROMPT, **options)  # type: ignore[arg-type]
        assert (greedy.tokens, greedy.text, greedy.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
        cut = session.generate(PROMPT, **options | {"max_new_tokens": 3})  # type: ignore[arg-type]
        assert cut.tokens == plain.tokens[:3]
        sampled = session.generate(PROMPT, temperature=1.0, seed=seed, **options)  # type: ignore[arg-type]
        for one in (greedy, cut, sampled):
            check_end(session, seed, grammar, one)
            found += Counter({one.finish_reason: 1, "forced": one.statistics.forced})
            found += Counter({"accepted": one.statistics.accepted, "drafted": one.statistics.drafted})
    assert min(found["stop"], found["length"]) > 20
    assert found["drafted"] > found["accepted"] > found["forced"] > 20
