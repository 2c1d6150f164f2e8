"""One session over several drafts: whoever drafts, the text is the target's, and every cache keeps its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from specexport.bundle import Bundle, ModelSpec
from specexport.engines.base import Logits, OpenedDraft
from specexport.errors import BundleError, EngineError, ParameterError, SessionClosedError
from specexport.runtime.drafting.names import all_drafters, check_drafter, drafters_of, model_of
from specexport.runtime.policy.controller import AdaptiveSchedule
from specexport.runtime.policy.cost_model import COSTS, CostPoint, Costs
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity
from specexport.runtime.policy.routes import POLICY, POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.proofs.verify import verify_session
from specexport.runtime.session import Session
from specexport.runtime.stream import holds
from support.costs import costs_at, flat_point
from support.doubles import CONTRACT, FakeDecoder, check_invariant, greedy_tokens
from support.refusals import refused
from support.several import several_session

PROMPT = [5, 6, 7]
NAMES = ("draft", "b", "c")


def make(root: Path, **options: int) -> Session:
    more = {"b": FakeDecoder(seed=1, noise=0.1), "c": FakeDecoder(seed=1, scale=-1.0)}
    return several_session(root, FakeDecoder(seed=1), FakeDecoder(seed=1, noise=0.5), more, **options)


def test_names_of_drafters() -> None:
    first = ("draft", "ngram", "ngram+draft")
    assert (all_drafters(()), all_drafters(("draft",))) == (("ngram",), first)
    assert all_drafters(NAMES) == (*first, "b", "ngram+b", "c", "ngram+c")
    assert [check_drafter(name, NAMES) for name in drafters_of("model")] == list(drafters_of("draft"))
    assert [model_of(name) for name in ("draft", "ngram", "ngram+b", "b")] == ["draft", None, "b", "b"]
    assert all(check_drafter(name, NAMES) == name for name in all_drafters(NAMES))
    with pytest.raises(ParameterError, match=r"c, ngram\+c \(model is the draft 'draft'\)"):
        check_drafter("d", NAMES)
    for name in ("b+model", "ngram+ngram+model", "+model", "model+", "ngram:model", "b:model"):
        with pytest.raises(ParameterError):
            check_drafter(name, NAMES)


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_requests_with_different_drafts_share_one_target(budget: int, tmp_path: Path) -> None:
    session, rng = make(tmp_path, prompt_cache_bytes=budget), np.random.default_rng(4)
    drafters = all_drafters(NAMES)
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


def test_logits_that_are_no_numbers_name_the_graph_of_the_draft_that_gave_them(tmp_path: Path) -> None:
    class Broken(FakeDecoder):
        def logits_after(self, context: object) -> Logits:
            return np.full(self.vocab_size, np.nan, np.float32)

    session = several_session(tmp_path, FakeDecoder(), FakeDecoder(), {"b": Broken()})
    with refused(EngineError, "non-finite"):
        session.generate(PROMPT, drafter="b", max_new_tokens=4)
    assert session.generate(PROMPT, max_new_tokens=4).tokens == greedy_tokens(FakeDecoder(), PROMPT, 4)


def test_drafters_that_this_bundle_or_engine_lacks(tmp_path: Path) -> None:
    session = make(tmp_path)
    for drafter in ("d", "ngram+d", "ngram+ngram", "lookup", "ngram:draft", "b:draft"):
        with refused(ParameterError, field="drafter"):
            session.stream(PROMPT, drafter=drafter)
        with refused(ParameterError, field="drafter"):
            verify_session(session, None, 4, drafter=drafter)
    session = Session(session.bundle, replace(session.engine, open_draft=None))
    with refused(ParameterError, "'draft', not 'b'", field="drafter"):
        session.stream(PROMPT, drafter="b")
    assert session.generate(PROMPT, max_new_tokens=4).statistics.emitted == 4  # the lock is free


def test_a_draft_of_a_bundle_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """Under a session that has not opened it; those that are open go on."""
    session = make(tmp_path)

    def from_files(spec: ModelSpec) -> OpenedDraft:
        session.bundle.path(spec.weights).read_bytes()
        return OpenedDraft(FakeDecoder(seed=1), None)

    session.drafts.engine = replace(session.engine, open_draft=from_files)
    session.generate(PROMPT, drafter="b", max_new_tokens=4)
    for name in ("b", "c"):
        for file in session.bundle.manifest.draft_called(name).files():
            session.bundle.path(file).unlink()
    with refused(ParameterError, "loaded", field="drafter"):
        session.stream(PROMPT, drafter="ngram+c")
    expected = greedy_tokens(FakeDecoder(seed=1), PROMPT, 4)
    assert session.generate(PROMPT, drafter="b", max_new_tokens=4).tokens == expected


def test_a_draft_that_fails_is_the_engines_fault(tmp_path: Path) -> None:
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


def point(draft: float) -> CostPoint:
    return flat_point(draft, 0.05, most=CONTRACT.max_draft_tokens)


def decided(session: Session, like: str = "b") -> Session:
    """With a policy that drafts `a` with the first draft and `b` with the second. like: the draft that the costs of the
    latter are of.
    """
    bundle, prices = session.bundle, {"draft": 0.5, "b": 0.01}
    entry = RoutePolicy("on", "model", 2, "adaptive", (0.9,), None)
    routes = {"a": entry, "b": replace(entry, drafter="b"), "both": replace(entry, drafter="ngram+b")}
    write_decision(bundle, Policy(POLICY_VERSION, bundle_identity(bundle), "fake", "", 0.0, 0.9, entry, routes), POLICY)
    costs = {name: costs_of(bundle, price, like if name == "b" else name) for name, price in prices.items()}
    write_decision(bundle, costs, COSTS)
    return Session(bundle, session.engine)


def costs_of(bundle: Bundle, draft_pass: float, draft: str) -> Costs:
    return costs_at(point(draft_pass), bundle=bundle_identity(bundle, draft), host="a host", engine="fake")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.runtime.policy.files.describe_host", lambda *_: "a host")


@pytest.mark.usefixtures("host")
def test_a_route_drafts_with_its_draft_at_its_costs(tmp_path: Path) -> None:
    session = make(tmp_path)
    session = decided(session)
    drafter, schedule = session.decisions.schedule("b", 4)
    assert drafter == "b"
    assert isinstance(schedule, AdaptiveSchedule)
    assert schedule._costs.points == (point(0.01),)
    assert session.decisions.schedule("a", 4)[1]._costs.points == (point(0.5),)  # type: ignore[attr-defined]
    assert list(session.drafts.opened) == ["draft"]
    session.prepare()
    assert list(session.drafts.opened) == ["draft", "b"]
    assert session.generate(PROMPT, route="b", max_new_tokens=12).statistics.draft_passes > 0
    with refused(BundleError, code="stale"):
        decided(session, "draft")


@pytest.mark.parametrize("content", ["[]", "3", '{"draft": 3}'])
def test_damaged_costs_are_named(tmp_path: Path, content: str) -> None:
    session = decided(make(tmp_path))
    session.bundle.path(COSTS).write_text(content)
    with refused(BundleError, field=(None, "costs.json: draft", "costs.json: draft.bundle")):
        Session(session.bundle, session.engine)


def test_costs_of_a_draft_are_measured_when_it_is_first_asked_for() -> None:
    costs = costs_at(point(0.5))
    asked: list[str] = []
    decisions = Decisions(first_draft="first", measure=lambda draft: asked.append(draft) or costs)  # type: ignore[func-returns-value]
    for drafter in ("ngram", "first", "b", "ngram+b", "b"):
        assert decisions.costs_of(drafter) == costs
    assert asked == ["first", "b"]


@pytest.mark.usefixtures("host")
def test_costs_are_measured_for_whom_the_policy_lets_adapt(tmp_path: Path) -> None:
    session, asked = decided(make(tmp_path)), list[str]()
    session.decisions.costs.clear()  # as on another host
    costs = costs_of(session.bundle, 0.5, "draft")
    session.decisions.measure = lambda draft: asked.append(draft) or costs  # type: ignore[func-returns-value]
    session.prepare()
    assert asked == ["draft", "b"]
    session.generate(PROMPT, route="b", max_new_tokens=4)
    assert asked == ["draft", "b"]
