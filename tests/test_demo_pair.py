"""The committed demo pair, built and run as `make demo` does: the promises of examples/demo_pair/README.md."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from specexport import Session, load
from specexport.calibration.measuring.record import Recorder, agreement
from specexport.calibration.measuring.replay import replay_fixed
from specexport.calibration.measuring.session_replay import start_of
from specexport.calibration.measuring.traces import Trace
from specexport.calibration.verdicts.verdict import Criteria, decide, replay_candidates
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.proofs.equality import check_equality
from support.costs import costs_at, flat_point

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("drafts_the_maximum")]

EXAMPLES = Path(__file__).parent.parent / "examples"
PAIR = EXAMPLES / "demo_pair"
ROUTES = ("code", "prose", "random")


@pytest.fixture(scope="module")
def session(demo_bundle: Path) -> Session:
    return load(demo_bundle)


def prompts(route: str) -> list[str]:
    rows = [
        json.loads(line) for line in (EXAMPLES / "prompts" / f"{route}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert {row["route"] for row in rows} == {route}
    return [row["prompt"] for row in rows]


def mean_acceptance_length(session: Session, route: str, count: int) -> float:
    found = [
        session.generate(prompt, max_new_tokens=64, stop_token_ids=(), drafter="model").statistics
        for prompt in prompts(route)[:count]
    ]
    return sum(row.accepted + row.rounds for row in found) / sum(row.rounds for row in found)


def test_sizes(session: Session) -> None:
    manifest = session.bundle.manifest
    assert 12e6 <= manifest.target.num_parameters <= 25e6
    assert manifest.drafts[0].model.num_parameters * 8 <= manifest.target.num_parameters
    assert sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file()) <= 50e6


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_has_enough_prompts_that_fit(session: Session, route: str) -> None:
    found = prompts(route)
    assert len(set(found)) == len(found) >= 200
    assert all(len(session.encode(prompt)) + 128 <= session.capacity for prompt in found)


# Bounds set below the figures of examples/demo_pair/README.md, to notice a pair or a loop that got worse.
def test_acceptance_by_route(session: Session) -> None:
    lengths = {route: mean_acceptance_length(session, route, 24) for route in ROUTES}
    assert min(lengths["code"], lengths["prose"]) >= 2.5
    assert lengths["random"] <= 1.6


@pytest.mark.parametrize("route", ROUTES)
def test_greedy_output_is_the_targets_own(session: Session, route: str) -> None:
    assert all(check_equality(session, session.encode(prompt), 48).passed for prompt in prompts(route)[:6])


def test_a_fixed_sample_is_repeated(session: Session) -> None:
    options = dict(max_new_tokens=40, temperature=0.8, top_p=0.95, seed=3)
    first = session.generate(prompts("code")[0], **options)  # type: ignore[arg-type]
    session.reset()
    assert session.generate(prompts("code")[0], **options).tokens == first.tokens  # type: ignore[arg-type]


def typical_costs(session: Session) -> Costs:
    """In plain passes, about what two cores measure; a test must not hang on this machine's load."""
    point = flat_point(0.12, 0.085, 0.05, session.max_draft_tokens, context=64)
    return costs_at(point, target_prefill=0.04, draft_prefill=0.005)


@pytest.mark.parametrize(("route", "verdict"), [("code", "on"), ("random", "off")])
def test_code_pays_and_random_does_not(session: Session, route: str, verdict: str) -> None:
    traces = []
    for line, prompt in enumerate(prompts(route)[:40]):
        given, recorder = session.encode(prompt), Recorder(session.max_draft_tokens, None)
        tokens = session.generate(given, max_new_tokens=64, schedule=recorder, drafter="model").tokens
        agrees = tuple(agreement(recorder.rounds, tokens, greedy=True))
        traces.append(Trace(line, route, len(given), (*given, *tokens), agrees, 64))
        if line % 8 == 0:  # what is replayed is what runs
            session.reset()
            options = {"max_new_tokens": 64, "num_draft_tokens": 2, "drafter": "model"}
            statistics = session.generate(prompt, **options).statistics
            assert statistics.rounds == len(list(replay_fixed(traces[-1], "model", 2)))
    costs = typical_costs(session)
    replayed = replay_candidates(traces, costs, ("model",))
    policy, _ = decide(replayed, Criteria(("model",), 0.9, "adaptive"), partial(start_of, traces, costs=costs))
    assert policy.verdict == verdict
