"""Sessions that nobody calibrated: costs are measured once, kept, and decide; by a clock that only passes move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.engines.base import Logits
from specexport.errors import EngineError
from specexport.runtime.costs import first
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.session import Session
from support.clock import CONTRACT, Clock, Timed
from support.doubles import FakeDecoder, fake_session

MakeSession = Callable[..., Session]
PROMPT = list(range(20))


@pytest.fixture
def make_session(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSession:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("specexport.runtime.costs.first.describe_host", lambda *_: "a host")

    def make(draft: float = 0.1, noise: float = 0.0, threads: int = 0, target: FakeDecoder | None = None) -> Session:
        decoder = target or Timed(clock, 1.0, 0.0, seed=1)
        session = fake_session(tmp_path / "bundle", decoder, Timed(clock, draft, 0.0, seed=1, noise=noise))
        session.threads, session.decisions.clock = threads, clock
        session.adapt()
        return session

    return make


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CostMeter]:
    found: list[CostMeter] = []
    real = CostMeter.measure

    def measure(meter: CostMeter, *given: object) -> None:
        found.append(meter)
        real(meter, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(CostMeter, "measure", measure)
    return found


def test_costs_are_measured_once_and_kept(make_session: MakeSession, measured: list[CostMeter]) -> None:
    session = make_session()
    for _ in range(2):
        session.generate(PROMPT, max_new_tokens=8)
    assert len(measured) == 1
    make_session().generate(PROMPT, max_new_tokens=8)
    assert len(measured) == 1, "the next session reads what was kept"
    make_session(threads=3).generate(PROMPT, max_new_tokens=8)
    assert len(measured) == 2, "which is for so many threads only"


def test_prepared_before_the_first_request(make_session: MakeSession, measured: list[CostMeter]) -> None:
    session = make_session()
    session.prepare()
    assert len(measured) == 1
    session.prepare()
    session.generate(PROMPT, max_new_tokens=8)
    assert len(measured) == 1
    assert session.decisions.costs["draft"] is not None


@pytest.mark.parametrize("options", [{"num_draft_tokens": 2}, {"speculate": False}, {"num_draft_tokens": 0}])
def test_nothing_is_measured_for_requests_that_need_no_costs(
    make_session: MakeSession, measured: list[CostMeter], options: dict[str, int]
) -> None:
    make_session().generate(PROMPT, max_new_tokens=8, **options)
    assert measured == []


def test_a_session_that_was_not_told_to_adapt_drafts_the_maximum(tmp_path: Path, measured: list[CostMeter]) -> None:
    session = fake_session(tmp_path, FakeDecoder(CONTRACT, seed=1), FakeDecoder(CONTRACT, seed=1))
    statistics = session.generate(PROMPT, max_new_tokens=9).statistics
    assert (statistics.rounds, measured) == (3, [])  # 4 tokens, 4 and what is left


@pytest.mark.parametrize(
    ("draft", "noise", "least", "most"), [(0.05, 0.0, 2.6, 3.0), (1.5, 0.0, 0.0, 0.2), (0.3, 3.0, 0.0, 0.6)]
)
def test_as_much_is_drafted_as_pays(
    make_session: MakeSession, draft: float, noise: float, least: float, most: float
) -> None:
    """A draft that is always right and cheap; one that costs more than the target; one that is hardly ever right."""
    session = make_session(draft, noise)
    plain = session.generate(PROMPT, max_new_tokens=200, speculate=False).tokens
    session.reset()
    generation = session.generate(PROMPT, max_new_tokens=200)
    assert generation.tokens == plain
    statistics = generation.statistics
    assert least <= statistics.drafted / (statistics.rounds - 1) <= most


def test_what_drafts_where_nothing_says_it(make_session: MakeSession) -> None:
    """A lookup and then the draft, but on engines whose rounds run on the device only the draft, which they have."""
    for rounds, wanted in ((None, "ngram+draft"), (object(), "draft")):
        session = make_session()
        session.engine = replace(session.engine, rounds=rounds)  # type: ignore[arg-type]
        session.adapt()
        session.stream(PROMPT).close()
        assert {*session.decisions.drafter_states} == {(wanted, False)}


def test_a_session_learns_from_its_requests(make_session: MakeSession) -> None:
    """A draft that is never right is trusted less by later ones; those that sample with a seed neither learn nor
    teach.
    """
    session = make_session(0.3, 30.0)
    shifts = []
    for place in range(6):
        session.generate([place] * 9, max_new_tokens=40)
        shifts.append(session.decisions.drafter_states["ngram+draft", False].prior)
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[-1] < -0.2
    session.generate([9] * 9, max_new_tokens=40, temperature=1.0, seed=1)
    assert session.decisions.drafter_states["ngram+draft", False].prior == shifts[-1]
    session.generate([9] * 9, max_new_tokens=40, seed=1)  # greedy: the seed decides nothing
    assert session.decisions.drafter_states["ngram+draft", False].prior < shifts[-1]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema_version": 99}'])
def test_kept_costs_that_cannot_be_read_are_measured_again(
    make_session: MakeSession, measured: list[CostMeter], tmp_path: Path, content: bytes
) -> None:
    make_session().generate(PROMPT, max_new_tokens=4)
    (file,) = (tmp_path / "cache/specexport/costs").iterdir()
    file.write_bytes(content)
    make_session().generate(PROMPT, max_new_tokens=4)
    assert len(measured) == 2
    make_session().generate(PROMPT, max_new_tokens=4)
    assert len(measured) == 2


def test_a_cache_that_cannot_be_written_is_no_failure(
    make_session: MakeSession, measured: list[CostMeter], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in its way")
    for count in (1, 2):
        assert make_session().generate(PROMPT, max_new_tokens=4).tokens
        assert len(measured) == count


def test_of_two_that_measured_at_once_the_first_to_write_counts(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_session().prepare()
    (file,) = (tmp_path / "cache/specexport/costs").iterdir()
    file.write_text(file.read_text().replace('"made": "', '"made": "long before '))
    real, asked = first._kept, []

    def kept(path: Path) -> object:
        asked.append(path)
        return None if len(asked) == 1 else real(path)  # nothing was there when it began

    monkeypatch.setattr(first, "_kept", kept)
    session = make_session()
    session.prepare()
    assert session.decisions.costs["draft"] is not None
    assert session.decisions.costs["draft"].made.startswith("long before")
    assert "long before" in file.read_text()
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_cancelled_while_it_measures(make_session: MakeSession, clock: Clock, measured: list[CostMeter]) -> None:
    """The request ends, and the next one measures: it does not draft the maximum for good."""

    class Told(Timed):
        cancels = True

        def logits_after(self, context: object) -> Logits:
            if self.cancels and measured:
                self.cancels = False
                session.cancel()
            return super().logits_after(context)  # type: ignore[arg-type]

    session = make_session(target=Told(clock, 1.0, 0.0, seed=1))
    assert session.generate(PROMPT, max_new_tokens=9).finish_reason == "cancelled"
    assert not session.decisions.costs
    assert session.generate(PROMPT, max_new_tokens=9).finish_reason == "length"
    assert session.decisions.costs["draft"] is not None


def test_a_round_that_is_cancelled_is_no_cost(make_session: MakeSession, clock: Clock, tmp_path: Path) -> None:
    """Cancelled at each of the last passes of a measurement: costs are whole, or there are none."""

    class Counting(Timed):
        passes, at = 0, -1

        def step(self, tokens: Sequence[int], position: int) -> Logits:
            self.passes += 1
            if self.passes == self.at:
                session.cancel()
            return super().step(tokens, position)

    def run(at: int = -1) -> None:
        target.passes, target.at = 0, at
        session.prepare()

    target = Counting(clock, 1.0, 0.0, seed=1)
    session = make_session(target=target)
    run()
    whole, few = session.decisions.costs["draft"], 0
    assert whole is not None
    for at in range(target.passes - 6, target.passes + 1):
        session = make_session(target=target)
        (file,) = (tmp_path / "cache/specexport/costs").iterdir()
        file.unlink()
        run(at)
        costs = session.decisions.costs.get("draft")
        few += costs is None
        for one in costs.points if costs is not None else ():
            assert [time.p10 for time in one.rounds] == pytest.approx([time.p10 for time in whole.points[0].rounds])
        session.prepare()
    assert few


def test_beside_a_wrong_prediction_the_model_drafts_as_much_as_pays(make_session: MakeSession) -> None:
    session = make_session(draft=1.5)  # which costs more than the target
    prediction = [0] * 60
    statistics = session.generate(PROMPT, max_new_tokens=60, prediction=prediction).statistics
    assert statistics.draft_passes < 12


def test_no_costs_where_random_tokens_give_no_numbers(make_session: MakeSession, clock: Clock) -> None:
    class Chosen(Timed):
        def logits_after(self, context: object) -> Logits:
            tokens = list(context)  # type: ignore[call-overload]
            if tokens[:20] != PROMPT[: len(tokens)]:
                raise EngineError("no numbers")
            return super().logits_after(context)  # type: ignore[arg-type]

    session = make_session(target=Chosen(clock, 1.0, 0.0, seed=1))
    assert session.generate(PROMPT, max_new_tokens=9).statistics.rounds == 3
    assert session.decisions.costs == {"draft": None}


def test_a_seed_repeats_itself_by_the_costs_that_were_kept(make_session: MakeSession) -> None:
    options = dict(max_new_tokens=40, temperature=1.0, seed=7)
    session = make_session(0.3, 0.6)
    first = session.generate(PROMPT, **options).tokens
    for other in range(3):  # what they teach the session is not for requests with a seed
        session.generate([other] * 9, max_new_tokens=60, temperature=1.0)
    assert session.generate(PROMPT, **options).tokens == first
    assert make_session(0.3, 0.6).generate(PROMPT, **options).tokens == first


def test_a_session_that_is_dropped_is_not_held(make_session: MakeSession) -> None:
    import gc
    import weakref

    session = make_session()
    reference = weakref.ref(session)
    gc.disable()
    try:
        del session
        assert reference() is None
    finally:
        gc.enable()
