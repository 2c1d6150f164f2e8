"""One session over several drafts: whoever drafts, the text is the target's, and every cache keeps its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from specexport.bundle import OLDEST_SCHEMA, SCHEMA_VERSION, Bundle, ModelSpec, State
from specexport.calibration.bench.interleaved import check as check_bench
from specexport.calibration.bench.results import BenchOptions
from specexport.calibration.choices import possible_drafters
from specexport.calibration.measuring.prompts import Request
from specexport.engines.base import Logits, OpenedDraft
from specexport.errors import BundleError, EngineError, ParameterError, SessionClosedError
from specexport.runtime.drafting.names import (
    DRAFTERS,
    all_chains,
    all_drafters,
    beside_first,
    check_drafter,
    drafters_of,
    guesser_of,
    model_of,
)
from specexport.runtime.policy.checks import check_policy
from specexport.runtime.policy.controller import AdaptiveSchedule
from specexport.runtime.policy.cost_model import CostPoint, Costs, DraftCosts, MeasuredTime
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity
from specexport.runtime.policy.routes import GUESS, POLICY, POLICY_VERSION, Evidence, Policy, RoutePolicy
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.proofs.verify import verify_session
from specexport.runtime.session import Session
from specexport.runtime.stream import holds
from support.doubles import CONTRACT, FakeDecoder, StatefulDecoder, check_invariant, greedy_tokens
from support.messages import Refused
from support.several import several_session

PROMPT = [5, 6, 7]
NAMES = ("draft", "b", "c")


def make(root: Path, **options: int) -> Session:
    more = {"b": FakeDecoder(seed=1, noise=0.1), "c": FakeDecoder(seed=1, scale=-1.0)}
    return several_session(root, FakeDecoder(seed=1), FakeDecoder(seed=1, noise=0.5), more, **options)


def test_names_of_drafters() -> None:
    assert OLDEST_SCHEMA < SCHEMA_VERSION
    assert all_drafters(("only",)) == DRAFTERS
    assert all_drafters(NAMES) == (*DRAFTERS, "b", "ngram+b", "suffix+b", "c", "ngram+c", "suffix+c")
    assert [check_drafter(name, True, NAMES) for name in drafters_of("draft")] == list(drafters_of("model"))
    assert [model_of(name) for name in ("model", "ngram", "suffix+b", "b", "ngram:b")] == ["model", None, "b", "b", "b"]
    chains = {"ngram:draft": "ngram:model", "suffix:b": "suffix:b", "b:draft": "b:model", "draft:c": "model:c"}
    assert [check_drafter(name, True, NAMES) for name in chains] == list(chains.values())
    assert all_chains(("only",)) == ("ngram:model", "suffix:model")
    assert not all_chains(())
    assert all_chains(("a", "b")) == ("ngram:model", "suffix:model", "b:model", "ngram:b", "suffix:b", "model:b")
    assert all(check_drafter(name, True, NAMES) == name for name in all_chains(NAMES))
    asked = [beside_first(name) for name in ("ngram", "ngram+model", "suffix:model", "b:model", "model:b", "c:b")]
    assert asked == [[], [], [], ["b"], ["b"], ["b", "c"]]
    assert [guesser_of(name) for name in ("model", "ngram+b", "ngram:b", "b:model")] == [None, None, "ngram", "b"]
    with pytest.raises(ParameterError, match=r"ngram\+c, suffix\+c \(model is the draft 'draft'\)"):
        check_drafter("d", True, NAMES)
    for name in ("b:b", "draft:model", "ngram:ngram", "d:model", "ngram:ngram:model", ":model", "model:"):
        with pytest.raises(ParameterError):
            check_drafter(name, True, NAMES)


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_requests_with_different_drafts_share_one_target(budget: int, tmp_path: Path) -> None:
    session, rng = make(tmp_path, prompt_cache_bytes=budget), np.random.default_rng(4)
    drafters = (*all_drafters(NAMES), "ngram:model", "suffix:b", "b:model", "model:c")
    used = set()
    for _ in range(75):
        prompt = rng.integers(5, 8, rng.integers(1, 6)).tolist()  # so short that many share a prefix
        drafter, count = drafters[rng.integers(len(drafters))], int(rng.integers(1, 20))
        stream = session.stream(prompt, drafter=drafter, num_draft_tokens=int(rng.integers(1, 4)), max_new_tokens=count)
        tokens: list[int] = []
        for number, chunk in enumerate(stream):
            tokens += chunk.tokens
            check_invariant(session._context)
            if number == 2 and count % 3 == 0:
                stream.close()
                break
        assert tuple(tokens) == greedy_tokens(session.engine.target, prompt, len(tokens))  # type: ignore[arg-type]
        used.add(drafter)
    assert used == set(drafters)


def test_each_request_is_drafted_by_the_one_that_it_names(tmp_path: Path) -> None:
    session = make(tmp_path)
    rates = {}
    for drafter in ("model", "b", "c", "draft"):
        rates[drafter] = session.generate(PROMPT, drafter=drafter, max_new_tokens=40).statistics.acceptance_rate
    assert rates["c"] == 0 < rates["model"] == rates["draft"] < rates["b"]


def test_a_draft_that_comes_back_lacks_what_others_drafted(tmp_path: Path) -> None:
    """Its cache is behind by what was decoded without it: fed when it drafts again, and only that."""
    session = make(tmp_path)
    first = session.generate(PROMPT, drafter="b", max_new_tokens=8)
    longer = [*PROMPT, *first.tokens]
    second = session.generate(longer, drafter="model", max_new_tokens=8)
    decoder = session.drafts.open("b").decoder
    decoder.steps.clear()  # type: ignore[attr-defined]
    session.generate([*longer, *second.tokens], drafter="b", max_new_tokens=1, num_draft_tokens=3)
    session.generate([*longer, *second.tokens], drafter="b", max_new_tokens=4, num_draft_tokens=3)
    assert min(position for _, position in decoder.steps) >= len(PROMPT)  # type: ignore[attr-defined]
    check_invariant(session._context)


def test_states_of_a_draft_beside_the_first(tmp_path: Path) -> None:
    more = {"b": StatefulDecoder(seed=1, noise=0.1, keeps=True)}
    session = several_session(tmp_path, FakeDecoder(seed=1), FakeDecoder(seed=1), more, prompt_cache_bytes=1 << 20)
    for length in (4, 9, 2, 9, 6):
        prompt = [5 + index % 3 for index in range(length)]
        tokens = session.generate(prompt, drafter="b", max_new_tokens=9).tokens
        assert tokens == greedy_tokens(session.engine.target, prompt, 9)  # type: ignore[arg-type]
        check_invariant(session._context)


def test_logits_that_are_no_numbers_name_the_graph_of_the_draft_that_gave_them(
    refused: Refused, tmp_path: Path
) -> None:
    class Broken(FakeDecoder):
        def logits_after(self, context: object) -> Logits:
            return np.full(self.vocab_size, np.nan, np.float32)

    session = several_session(tmp_path, FakeDecoder(), FakeDecoder(), {"b": Broken()})
    with refused(EngineError):
        session.generate(PROMPT, drafter="b", max_new_tokens=4)
    assert session.generate(PROMPT, max_new_tokens=4).tokens == greedy_tokens(FakeDecoder(), PROMPT, 4)


def test_drafters_that_this_bundle_or_engine_lacks(refused: Refused, tmp_path: Path) -> None:
    session = make(tmp_path)
    for drafter in ("d", "ngram+d", "ngram+ngram", "lookup"):
        with refused(ParameterError):
            session.stream(PROMPT, drafter=drafter)
    session = Session(session.bundle, replace(session.engine, open_draft=None))
    with refused(ParameterError):
        session.stream(PROMPT, drafter="b")
    assert session.generate(PROMPT, max_new_tokens=4).statistics.emitted == 4  # the lock is free


def test_nothing_drafts_for_a_draft_that_keeps_states(refused: Refused, tmp_path: Path) -> None:
    plain = make(tmp_path)
    manifest, b = plain.bundle.manifest, plain.bundle.manifest.more_drafts["b"]
    layers = tuple(replace(layer, states=(State("window", (2, 8)),)) for layer in b.model.layers)
    hybrid = replace(b, model=replace(b.model, layers=layers))
    bundle = Bundle(tmp_path, replace(manifest, more_drafts={**manifest.more_drafts, "b": hybrid}))
    session = Session(bundle, plain.engine)
    for drafter in ("ngram:b", "model:b"):
        with refused(ParameterError):
            session.stream(PROMPT, drafter=drafter)
    with refused(ParameterError):
        verify_session(session, None, 4, drafter="suffix:b")
    with refused(ParameterError):
        check_bench(session, [Request(1, "route", tuple(PROMPT), 4)], BenchOptions(drafter="c:b"))
    entry = RoutePolicy("on", "ngram:b", 2, "adaptive", (0.9,), None, 0.5)
    with refused(BundleError):
        check_policy(Policy(POLICY_VERSION, bundle_identity(bundle), "fake", "", 0.0, 0.9, entry, {}), bundle)
    for drafter in ("b", "ngram+b", "b:model", "ngram:model"):
        assert session.generate(PROMPT, drafter=drafter, max_new_tokens=4).statistics.emitted == 4
    assert {"b:model", "b:c"} < {chain for chain in possible_drafters(session) if ":" in chain}
    assert not [chain for chain in possible_drafters(session) if chain.endswith(":b")]


def test_a_draft_that_has_left_the_bundle_is_refused(refused: Refused, tmp_path: Path) -> None:
    """Removed or replaced under a session that has not opened it; those that are open go on."""
    session = make(tmp_path)

    def from_files(spec: ModelSpec) -> OpenedDraft:
        session.bundle.path(spec.weights).read_bytes()
        return OpenedDraft(FakeDecoder(seed=1), None)

    session.drafts.engine = replace(session.engine, open_draft=from_files)
    session.generate(PROMPT, drafter="b", max_new_tokens=4)
    for name in ("b", "c"):
        for file in session.bundle.manifest.more_drafts[name].files():
            session.bundle.path(file).unlink()
    with refused(ParameterError):
        session.stream(PROMPT, drafter="ngram+c")
    assert session.generate(PROMPT, drafter="b", max_new_tokens=4).tokens == greedy_tokens(
        FakeDecoder(seed=1), PROMPT, 4
    )


def test_a_draft_that_is_there_and_fails_is_the_engines_fault(tmp_path: Path) -> None:
    session = make(tmp_path)

    def fails(spec: ModelSpec) -> OpenedDraft:
        raise EngineError("no memory")

    session.drafts.engine = replace(session.engine, open_draft=fails)
    with pytest.raises(EngineError, match="no memory"):
        session.stream(PROMPT, drafter="b")


def test_no_draft_is_opened_beside_a_pass_or_behind_the_end(tmp_path: Path) -> None:
    session, held = make(tmp_path), []

    def opened(spec: ModelSpec) -> OpenedDraft:
        held.append(holds(session._running))
        return OpenedDraft(FakeDecoder(seed=1), None)

    session.drafts.engine = replace(session.engine, open_draft=opened)
    session.drafts.open("b")
    assert held == [True]
    session.close()
    with pytest.raises(SessionClosedError):
        session.drafts.open("c")
    assert held == [True]


def time(seconds: float) -> MeasuredTime:
    return MeasuredTime(seconds, seconds, seconds)


def point(draft: float) -> CostPoint:
    verify = tuple(time(1.0 + 0.05 * k) for k in range(CONTRACT.max_draft_tokens + 1))
    rounds = tuple(time(one.median + k * draft) for k, one in enumerate(verify))
    return CostPoint(64, rounds, time(draft), verify, (time(0.0),) * len(rounds))


def decided(session: Session, weights: str) -> Session:
    """With a policy that drafts `a` with the first draft and `b` with the second. weights: of which costs are."""
    bundle = session.bundle
    entry = RoutePolicy("on", "model", 2, "adaptive", (0.9,), None)
    routes = {"a": entry, "b": replace(entry, drafter="b"), "both": replace(entry, drafter="ngram+b")}
    write_decision(bundle, Policy(POLICY_VERSION, bundle_identity(bundle), "fake", "", 0.0, 0.9, entry, routes), POLICY)
    drafts = {"b": DraftCosts(weights, 0.0, (point(0.01),))}
    costs = Costs(1, bundle_identity(bundle), "a host", "fake", 0, "", 0.0, 0.0, (point(0.5),), drafts)
    write_decision(bundle, costs, "costs.json")
    return Session(bundle, session.engine)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.runtime.policy.checks.describe_host", lambda *_: "a host")


@pytest.mark.usefixtures("host")
def test_a_route_drafts_with_its_draft_at_its_costs(tmp_path: Path) -> None:
    session = make(tmp_path)
    weights = session.bundle.manifest.files[session.bundle.manifest.more_drafts["b"].model.weights].sha256
    session = decided(session, weights)
    drafter, schedule = session.decisions.schedule("b", 4)
    assert drafter == "b"
    assert isinstance(schedule, AdaptiveSchedule)
    assert schedule._costs.points == (point(0.01),)
    assert session.decisions.schedule("a", 4)[1]._costs.points == (point(0.5),)  # type: ignore[attr-defined]
    assert not session.drafts.opened
    session.prepare()
    assert list(session.drafts.opened) == ["b"]
    assert session.generate(PROMPT, route="b", max_new_tokens=12).statistics.draft_passes > 0
    assert list(session.drafts.opened) == ["b"]
    stale = decided(session, "of another draft")
    assert isinstance(stale.decisions.schedule("b", 4)[1], FixedSchedule)


@pytest.mark.usefixtures("host")
def test_an_engine_that_runs_the_first_alone_follows_its_policy_with_that(tmp_path: Path) -> None:
    session = decided(make(tmp_path), "x")
    alone = Session(session.bundle, replace(session.engine, open_draft=None))
    assert [alone.decisions.schedule(route, 4)[0] for route in ("a", "b", "both")] == ["model", "model", "ngram+model"]
    assert alone.decisions.policy is not None
    own, other = (alone.decisions.policy.of(route) for route in ("a", "b"))
    assert own == session.decisions.policy.of("a")  # type: ignore[union-attr]
    assert other == RoutePolicy("undecided", "model", CONTRACT.max_draft_tokens, "adaptive", (GUESS,) * 4, None)


def test_what_lost_with_another_draft_stays_off_with_the_first() -> None:
    evidence = Evidence(30, 1.2, 1.5, 0.8, 0.7, 0.9, 0.6)
    lost = RoutePolicy("off", "suffix+b", 0, "fixed", (0.2, 0.1), evidence)
    for name in ("b:model", "ngram:b", "model:b"):  # whatever drafted for it may be one of the others
        assert replace(lost, drafter=name, unit=0.5).with_first_draft(3).drafter == "model"
    assert lost.with_first_draft(3) == RoutePolicy("off", "suffix+model", 0, "fixed", (GUESS,) * 3, None)


def test_a_lookup_drafts_for_the_first_draft_on_every_engine_whose_rounds_the_host_runs() -> None:
    """As `calibrate` chooses there."""
    chain = RoutePolicy("on", "ngram:model", 3, "adaptive", (0.7, 0.6), None, 0.5)
    assert chain.with_first_draft(4) == chain
    assert chain.with_first_draft(4, whole_rounds=True) == replace(chain, drafter="model", unit=1.0)
    by_another = replace(chain, drafter="small:model")
    assert by_another.with_first_draft(4) == replace(chain, drafter="model", unit=1.0)


def test_costs_of_a_draft_are_measured_when_it_is_first_asked_for() -> None:
    costs = Costs(1, "", "a host", "fake", 0, "", 0.0, 0.0, (point(0.5),))
    asked: list[tuple[str, ...]] = []
    decisions = Decisions(measure=lambda *draft: asked.append(draft) or costs)  # type: ignore[func-returns-value]
    for drafter in ("ngram", "model", "b", "suffix+b", "b"):
        assert decisions.costs_of(drafter) == costs
    assert asked == [(), ("b",)]
