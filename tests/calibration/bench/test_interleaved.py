"""Plain against speculative: how the runs are made, what is compared, what follows from them, and how it goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.calibration.bench import interleaved as module
from specexport.calibration.bench.interleaved import (
    Bench,
    BenchOptions,
    Pair,
    Run,
    bench,
    check,
    journal_header,
    summarize,
)
from specexport.calibration.bench.table import COLUMNS, render
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.statistics.intervals import UNBOUNDED
from specexport.errors import OutputError, ParameterError
from specexport.runtime.session import Session
from support.doubles import CONTRACT, EOS, VOCAB, FakeDecoder, fake_session

OPTIONS = BenchOptions(max_new_tokens=9)


def requests(count: int = 6, routes: str = "ab", new_tokens: int = 9) -> list[Request]:
    """The routes alternate, as they may in a file."""
    draw = random.Random(0)
    return [
        Request(
            line,
            routes[line % len(routes)],
            tuple(draw.randrange(VOCAB) for _ in range(draw.randrange(1, 20))),
            new_tokens,
        )
        for line in range(1, count + 1)
    ]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of the doubles has no device that could be asked for its name."""
    monkeypatch.setattr(module, "describe_host", lambda engine: f"a host with {engine}")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return fake_session(tmp_path / "bundle", FakeDecoder(), FakeDecoder(noise=0.4))


Call = dict[str, Any]


@pytest.fixture
def calls(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What was asked of the session: resets, and every stream with its options and what it could keep of the caches."""
    made: list[Call] = []
    stream, reset = session.stream, session.reset

    def recorded(prompt: Sequence[int], **options: Any) -> Any:
        made.append({"prompt": tuple(prompt)} | options)
        for chunk in stream(prompt, **options):
            made[-1]["reused"] = chunk.statistics.reused_tokens
            yield chunk

    def forgotten() -> None:
        made.append({"reset": True})
        reset()

    monkeypatch.setattr(session, "stream", recorded)
    monkeypatch.setattr(session, "reset", forgotten)
    return made


def streams(calls: list[Call]) -> list[Call]:
    return [call for call in calls if "prompt" in call]


def stable(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Pairs without their times."""

    def counts(run: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in run.items() if not key.endswith("_seconds")}

    return [row | {way: counts(row[way]) for way in ("plain", "speculative")} for row in map(asdict, pairs)]


# The runs.


def test_every_request_runs_both_ways_alike(session: Session, calls: list[Call]) -> None:
    given = requests()
    bench(
        session, given, BenchOptions(num_draft_tokens=3, drafter="model", temperature=0.7, top_k=9, top_p=0.9, seed=5)
    )
    made = streams(calls)[2:]
    assert len(made) == 12
    for request, both in zip(given, zip(made[::2], made[1::2], strict=True), strict=True):
        assert {call["speculate"] for call in both} == {True, False}
        for call in both:
            assert call["prompt"] == request.tokens
            wanted = dict(max_new_tokens=9, temperature=0.7, top_k=9, top_p=0.9, seed=5)
            assert {name: call[name] for name in wanted} == wanted
            assert "stop_token_ids" not in call  # the model's own
            if call["speculate"]:
                assert (call["num_draft_tokens"], call["drafter"], call["route"]) == (3, "model", request.route)


def test_the_order_alternates_within_every_route(session: Session, calls: list[Call]) -> None:
    result = bench(session, requests(8), replace(OPTIONS, repeats=2))
    for route in "ab":
        for repeat in (0, 1):
            order = [pair.plain_first for pair in result.pairs if (pair.route, pair.repeat) == (route, repeat)]
            assert order == [(place + repeat) % 2 == 0 for place in range(4)]
    told = [not first["speculate"] for first in streams(calls)[2::2]]
    assert told == [pair.plain_first for pair in result.pairs]


def test_both_pay_the_prefill(session: Session, calls: list[Call]) -> None:
    result = bench(session, requests(3), OPTIONS)
    for before, call in pairwise(calls):
        assert "prompt" not in call or "reset" in before
    assert [call["reused"] for call in streams(calls)] == [0] * 8
    assert calls[-1] == {"reset": True}
    assert [pair.prompt_tokens for pair in result.pairs] == [len(request.tokens) for request in requests(3)]


def test_the_first_request_warms_up_and_does_not_count(session: Session, calls: list[Call]) -> None:
    result = bench(session, requests(2), OPTIONS)
    made = [(call["prompt"], call["speculate"]) for call in streams(calls)]
    assert len(made) == 6
    assert made[:2] == made[2:4]
    assert len(result.pairs) == 2


def test_what_a_run_records(session: Session) -> None:
    request = requests(1)[0]
    pair = bench(session, [request], replace(OPTIONS, num_draft_tokens=3)).pairs[0]
    session.reset()
    found = session.generate(request.tokens, max_new_tokens=9, num_draft_tokens=3).statistics
    run = pair.speculative
    assert (run.emitted, run.rounds, run.looked_up) == (found.emitted, found.rounds, 0)
    assert run.drafted_by_position == tuple(found.drafted_by_position)
    assert run.accepted_by_position == tuple(found.accepted_by_position)
    assert sum(run.rounds_by_drafted) == run.rounds
    assert sum(count * number for number, count in enumerate(run.rounds_by_drafted)) == found.drafted
    assert len(run.rounds_by_drafted) == 4
    assert pair.plain.rounds_by_drafted == (9,)
    assert pair.plain.drafted_by_position == pair.plain.accepted_by_position == ()
    assert run.digest == pair.plain.digest
    assert len(run.digest) == 64
    parts = (run.draft_seconds, run.target_seconds, run.host_seconds)
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(run.decode_seconds)
    assert 0 < run.prefill_seconds < run.first_token_seconds < run.prefill_seconds + run.decode_seconds


def test_digests_tell_tokens_apart(session: Session) -> None:
    result = bench(session, requests(4), OPTIONS)
    assert len({pair.plain.digest for pair in result.pairs}) == 4


def test_looked_up_tokens_are_counted(session: Session) -> None:
    result = bench(session, [Request(1, "r", (1, 2, 3) * 4, 9)], replace(OPTIONS, drafter="ngram"))
    run = result.pairs[0].speculative
    assert run.looked_up == sum(run.drafted_by_position) > 0


def test_stop_tokens_are_honoured(tmp_path: Path) -> None:
    """Both ways end at the same token, before the limit."""
    target = FakeDecoder()
    prompt = (5, 6, 7)
    free = (
        fake_session(tmp_path / "free", FakeDecoder(), FakeDecoder(noise=0.4)).generate(prompt, max_new_tokens=9).tokens
    )
    session = fake_session(tmp_path / "bundle", target, FakeDecoder(noise=0.4), stop_token_ids=(free[4], EOS))
    pair = bench(session, [Request(1, "r", prompt, 9)], OPTIONS).pairs[0]
    assert pair.plain.emitted == pair.speculative.emitted == free.index(free[4]) + 1
    assert pair.outputs == "equal"


def test_the_number_of_new_tokens_is_the_requests_own(session: Session) -> None:
    given = [replace(request, max_new_tokens=place + 1) for place, request in enumerate(requests(4))]
    assert [pair.plain.emitted for pair in bench(session, given, OPTIONS).pairs] == [1, 2, 3, 4]


# The outputs.


class WidthDependent(FakeDecoder):
    """Two ids lead every row by far and lie `gap` apart; passes wider than one token move the second up by `shift`."""

    gap, shift, width = 1e-4, 0.0, 1

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        self.width = len(tokens)
        return super().step(tokens, position)

    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        logits = super().logits_after(context).copy()
        first = int(logits.argmax())
        logits[first] = 50.0
        logits[(first + 1) % VOCAB] = 50.0 - self.gap + (self.shift if self.width > 1 else 0.0)
        return logits


class SeesStaleRows(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows[: row + 4]


def outputs(tmp_path: Path, target: FakeDecoder, options: BenchOptions = OPTIONS) -> tuple[Bench, list[str]]:
    session = fake_session(tmp_path, target, FakeDecoder(noise=0.4))
    result = bench(session, requests(4), options)
    return result, [pair.outputs for pair in result.pairs]


def test_equal_outputs_pass(tmp_path: Path) -> None:
    result, found = outputs(tmp_path, FakeDecoder())
    assert found == ["equal"] * 4
    assert result.passed
    assert [(route.equal, route.near_ties, route.different, route.not_comparable) for route in result.routes] == [
        (2, 0, 0, 0)
    ] * 2


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_near_tie_that_another_width_turns_passes(k: int, tmp_path: Path) -> None:
    target = WidthDependent()
    target.shift = 2e-4
    result, found = outputs(tmp_path, target, replace(OPTIONS, num_draft_tokens=k))
    assert found == ["near tie"] * 4
    assert result.passed
    assert [(route.equal, route.near_ties, route.different) for route in result.routes] == [(0, 2, 0)] * 2


def test_stale_rows_fail(tmp_path: Path) -> None:
    result, found = outputs(tmp_path, SeesStaleRows())
    assert "different" in found
    assert not result.passed
    assert sum(route.different for route in result.routes) == found.count("different")
    assert render(result).splitlines()[-1].startswith("FAILED: ")


def test_what_counts_as_different(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    request = requests(1)[0]
    plain = list(session.generate(request.tokens, max_new_tokens=6).tokens)
    widths = [5] * 6

    def compare(speculative: list[int]) -> str:
        return module._compare(session, request, plain, speculative, widths[: len(speculative)])

    assert compare(plain) == "equal"
    assert compare(plain[:-1]) == "different"  # one ends early
    # not what the target gives at this width
    assert compare([*plain[:2], (plain[2] + 1) % VOCAB, *plain[3:]]) == "different"
    monkeypatch.setattr(
        "specexport.runtime.proofs.equality.plain_at_widths",
        lambda target, prompt, widths, chunk, capacity: tuple(other),
    )
    other = [*plain[:2], (plain[2] + 1) % VOCAB, *plain[3:]]
    assert compare(other) == "different"  # what it gives at this width, but at no tie


def test_judging_leaves_nothing_in_the_caches(session: Session) -> None:
    request = requests(1)[0]
    plain = list(session.generate(request.tokens, max_new_tokens=6).tokens)
    module._compare(session, request, plain, [*plain[:-1], (plain[-1] + 1) % VOCAB], [5] * 6)
    again = session.generate(request.tokens, max_new_tokens=6)
    assert again.statistics.reused_tokens == 0
    assert list(again.tokens) == plain


def test_sampled_outputs_are_not_compared(tmp_path: Path) -> None:
    result, found = outputs(tmp_path, SeesStaleRows(), BenchOptions(max_new_tokens=9, temperature=1.0))
    assert found == ["not comparable"] * 4
    assert result.passed
    assert "not comparable token by token" in render(result)


# What follows from them.


def run(
    decode: float, emitted: int = 10, rounds: int = 5, prefill: float = 1.0, first: float = 1.5, **more: Any
) -> Run:
    shares = dict(
        draft_seconds=0.25 * decode, target_seconds=0.5 * decode, device_seconds=0.0, host_seconds=0.25 * decode
    )
    positions = dict(drafted_by_position=(rounds, rounds), accepted_by_position=(rounds, 0))
    counts = dict(looked_up=0, draft_passes=0, rounds_by_drafted=(0, 0, rounds))
    given: dict[str, Any] = counts | positions | shares | dict(digest="d") | more
    return Run(
        emitted=emitted,
        rounds=rounds,
        first_token_seconds=first,
        prefill_seconds=prefill,
        decode_seconds=decode,
        **given,
    )


def pair(request: int, plain: Run, speculative: Run, route: str = "r", repeat: int = 0, outputs: Any = "equal") -> Pair:
    return Pair(request, request + 1, route, repeat, 7, True, plain, speculative, outputs)


def test_the_speedup_is_of_the_sums() -> None:
    found = summarize("r", [pair(0, run(8.0), run(2.0)), pair(1, run(2.0), run(3.0))])
    assert found.speedup.value == 2.0  # 10 / 5; the mean of the requests' own is 2.33
    assert found.speedups.p50 == pytest.approx((4 + 2 / 3) / 2)
    assert found.slower == 0.5
    assert found.whole_request.value == pytest.approx(12 / 7)
    assert found.speedup.low < 2 < found.speedup.high


def test_lengths_that_differ_are_made_equal() -> None:
    """4 s for 4 tokens against 5 s for 10: 1 s a token against half of that."""
    found = summarize("r", [pair(0, run(4.0, emitted=4), run(5.0, emitted=10))])
    assert found.speedup.value == 2.0
    assert found.speedups.p50 == 2.0
    assert found.whole_request.value == pytest.approx((1 + 10) / (1 + 5))
    assert found.latency_plain.p50 == 1.0
    assert found.latency_speculative.p50 == 0.5
    assert (found.emitted, found.prompt_tokens) == (10, 7)


def test_repeats_are_one_request() -> None:
    """They make its times better known, and do not pass for more requests."""
    once = [pair(number, run(8.0 + number), run(4.0)) for number in range(3)]
    twice = [*once, *(replace(one, repeat=1) for one in once)]
    first, second = summarize("r", once), summarize("r", twice)
    assert second.requests == first.requests == 3
    assert second.speedup.low == pytest.approx(first.speedup.low)
    assert second.speedup.high == pytest.approx(first.speedup.high)
    assert second.latency_plain == first.latency_plain
    assert second.tokens_per_round == first.tokens_per_round
    assert second.equal == 6
    noisy = [pair(0, run(9.0), run(4.0)), pair(0, run(7.0), run(4.0), repeat=1)]
    assert summarize("r", noisy).speedups.p10 == 2.0


def test_counts_of_a_route() -> None:
    counts = dict(drafted_by_position=(4, 3, 1), accepted_by_position=(2, 1, 1))
    more = dict(drafted_by_position=(6,), accepted_by_position=(1,))
    pairs = [
        pair(0, run(8.0), run(2.0, emitted=7, rounds=4, **counts)),
        pair(1, run(8.0), run(2.0, emitted=8, rounds=6, **more), outputs="near tie"),
        pair(2, run(8.0), run(4.0, emitted=5, rounds=5), outputs="different"),
    ]
    found = summarize("r", pairs)
    assert found.tokens_per_round == 20 / 15
    assert found.acceptance == ((2 + 1 + 5) / (4 + 6 + 5), 1 / 8, 1.0)
    assert (found.draft_share, found.target_share, found.device_share, found.host_share) == (0.25, 0.5, 0.0, 0.25)
    assert (found.equal, found.near_ties, found.different, found.not_comparable) == (1, 1, 1, 0)
    assert (found.requests, found.rounds, found.emitted) == (3, 15, 20)


def test_quantiles_are_over_requests() -> None:
    pairs = [
        pair(number, run(10.0 + number, first=number + 1.0), run(20.0, first=2.0 * number)) for number in range(11)
    ]
    found = summarize("r", pairs)
    assert (found.latency_plain.p10, found.latency_plain.p50, found.latency_plain.p90) == (1.1, 1.5, 1.9)
    assert found.latency_speculative.p10 == found.latency_speculative.p99 == 2.0
    assert (found.first_token_plain.p50, found.first_token_speculative.p50) == (6.0, 10.0)
    assert (found.speedups.p10, found.speedups.p90) == (0.55, 0.95)
    assert found.slower == 10 / 11


def test_as_fast_is_not_slower() -> None:
    assert summarize("r", [pair(0, run(2.0), run(2.0))]).slower == 0.0


def test_one_request_has_no_interval() -> None:
    found = summarize("r", [pair(0, run(4.0), run(2.0))])
    assert (found.speedup.low, found.speedup.high) == (0.0, UNBOUNDED)


def test_predictions_are_asked_for_by_route(session: Session) -> None:
    asked: list[tuple[str, list[str]]] = []

    def predict(route: str, pairs: Sequence[Pair]) -> float | None:
        asked.append((route, [pair.route for pair in pairs]))
        return 1.25 if route == "a" else None

    result = bench(session, requests(4), OPTIONS, predict=predict)
    assert asked == [("b", ["b", "b"]), ("a", ["a", "a"])]
    assert [route.predicted for route in result.routes] == [None, 1.25]
    assert result.overall is not None
    assert result.overall.predicted is None
    assert "1.25x" in render(result)
    assert [route.predicted for route in bench(session, requests(4), OPTIONS).routes] == [None, None]


def test_routes_come_in_the_order_of_the_prompts(session: Session) -> None:
    result = bench(session, requests(5), OPTIONS)
    assert [(route.route, route.requests) for route in result.routes] == [("b", 3), ("a", 2)]
    assert result.overall is not None
    assert (result.overall.route, result.overall.requests) == ("all", 5)
    assert bench(session, requests(3, "a"), OPTIONS).overall is None


def test_as_dict_is_json(session: Session) -> None:
    result = bench(session, requests(3), OPTIONS)
    row = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert list(row) == ["passed", "bundle", "engine", "host", "options", "routes", "overall", "pairs"]
    assert row["engine"] == "fake"
    assert row["bundle"] == "bundle"
    assert row["options"]["max_new_tokens"] == 9
    assert len(row["pairs"]) == 3


# What cannot be.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_draft_tokens=0), "num_draft_tokens is 0; it must be at least 1, or there is nothing to compare"),
        (dict(repeats=0), "repeats is 0"),
        (dict(max_new_tokens=0), "max_new_tokens is 0"),
        (dict(temperature=-1.0), "temperature is -1.0"),
        (dict(top_k=-1), "top_k is -1"),
        (dict(top_p=0.0), "top_p is 0.0"),
        (dict(seed=-1), "seed is -1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        BenchOptions(**options)


def test_what_the_session_cannot_do(session: Session, calls: list[Call], tmp_path: Path) -> None:
    for options, message in (
        (BenchOptions(num_draft_tokens=5), "num_draft_tokens is 5; this bundle was built for 1 to 4"),
        (BenchOptions(drafter="oracle"), "drafter is 'oracle'"),
    ):
        for refuse in (check, bench):
            with pytest.raises(ParameterError, match=message):
                refuse(session, requests(2), options)
    with pytest.raises(ParameterError, match="there are no requests"):
        bench(session, [], OPTIONS)
    assert calls == []
    alone = fake_session(tmp_path / "alone", FakeDecoder(), None)
    with pytest.raises(ParameterError, match="built without --draft"):
        check(alone, requests(2), BenchOptions(drafter="model"))
    check(alone, requests(2), BenchOptions(drafter="ngram", num_draft_tokens=4))


def test_runs_that_cannot_be() -> None:
    for harm in (
        dict(emitted=0),
        dict(rounds=0),
        dict(decode=0.0),
        dict(decode=-1.0),
        dict(decode=float("nan")),
        dict(decode=float("inf")),
    ):
        with pytest.raises(ValueError, match="cannot be"):
            run(**({"decode": 1.0} | harm))


# Interrupted runs.


@pytest.fixture
def opened(session: Session, tmp_path: Path) -> Callable[..., Journal]:
    def opened(given: Sequence[Request] = (), options: BenchOptions = OPTIONS) -> Journal:
        return Journal.open(tmp_path / "bench.jsonl", journal_header(session, given or requests(), options))

    return opened


class Interrupt:
    """A progress that ends the run after so many pairs."""

    def __init__(self, after: int) -> None:
        self.after, self.told = after, list[tuple[int, int]]()

    def __call__(self, done: int, total: int) -> None:
        self.told.append((done, total))
        if done == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 4, 11])
def test_an_interrupted_run_goes_on_where_it_stopped(
    after: int, session: Session, calls: list[Call], opened: Callable[..., Journal]
) -> None:
    options = replace(OPTIONS, repeats=2, temperature=0.8, seed=4)
    whole = bench(session, requests(), options)
    calls.clear()
    with opened(options=options) as journal, pytest.raises(KeyboardInterrupt):
        bench(session, requests(), options, journal, Interrupt(after))
    assert len(streams(calls)) == 2 + 2 * after
    calls.clear()
    progress = Interrupt(99)
    with opened(options=options) as journal:
        kept = list(journal.finished.values())
        assert len(kept) == after
        result = bench(session, requests(), options, journal, progress)
        assert len(journal.finished) == 12
    assert len(streams(calls)) == 2 + 2 * (12 - after)
    assert progress.told == [(done, 12) for done in range(after, 13)]
    assert stable(result.pairs) == stable(whole.pairs)
    assert json.loads(json.dumps([asdict(pair) for pair in result.pairs[:after]])) == kept  # their times too
    assert [(route.route, route.emitted, route.acceptance) for route in result.routes] == [
        (route.route, route.emitted, route.acceptance) for route in whole.routes
    ]


def test_a_finished_run_is_read_and_nothing_runs(
    session: Session, calls: list[Call], opened: Callable[..., Journal]
) -> None:
    with opened() as journal:
        first = bench(session, requests(), OPTIONS, journal)
    calls.clear()
    with opened() as journal:
        assert bench(session, requests(), OPTIONS, journal) == first
    assert streams(calls) == []


def test_a_run_may_be_killed_at_any_byte(session: Session, opened: Callable[..., Journal]) -> None:
    with opened() as journal:
        whole = bench(session, requests(), OPTIONS, journal)
        path = journal.path
    content = path.read_bytes()
    for size in range(0, len(content), len(content) // 7):
        path.write_bytes(content[:size])
        with opened() as journal:
            assert stable(bench(session, requests(), OPTIONS, journal).pairs) == stable(whole.pairs)


def test_what_makes_another_run(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = journal_header(session, requests(), OPTIONS)
    assert header == journal_header(session, requests(), OPTIONS)
    assert json.loads(json.dumps(header)) == header
    assert header["command"] == "bench"
    first, *rest = requests()
    changed = [
        rest,
        [*rest, first],
        [replace(first, route="c"), *rest],
        [replace(first, tokens=(1,)), *rest],
        [replace(first, max_new_tokens=3), *rest],
        [replace(first, line=9), *rest],
    ]
    seen = [header, *(journal_header(session, given, OPTIONS) for given in changed)]
    for name, value in dict(
        num_draft_tokens=2, drafter="ngram", temperature=1.0, top_k=2, top_p=0.5, seed=1, repeats=2
    ).items():
        seen.append(journal_header(session, requests(), replace(OPTIONS, **{name: value})))
    other = fake_session(
        tmp_path / "other", FakeDecoder(contract=replace(CONTRACT, capacity=40)), FakeDecoder(noise=0.4)
    )
    seen.append(journal_header(other, requests(), OPTIONS))
    monkeypatch.setattr(session, "threads", 2)
    seen.append(journal_header(session, requests(), OPTIONS))
    monkeypatch.setattr(module, "describe_host", lambda engine: f"another host with {engine}")
    seen.append(journal_header(session, requests(), OPTIONS))
    (session.bundle.root / "policy.json").write_text("{}")
    seen.append(journal_header(session, requests(), OPTIONS))
    assert len({json.dumps(entry) for entry in seen}) == len(seen)


def test_rows_that_are_no_pairs(session: Session, opened: Callable[..., Journal]) -> None:
    with opened() as journal:
        bench(session, requests(), OPTIONS, journal)
        path, rows = journal.path, dict(journal.finished)
    for change in (
        dict(more=1),
        dict(plain=None),
        dict(plain={}),
        dict(outputs="fine"),
        dict(route=3),
        dict(plain=rows["0/0"]["plain"] | {"rounds": 0}),
    ):
        path.unlink()
        with opened() as journal:
            journal.add("0/0", rows["0/0"] | change)
            with pytest.raises(OutputError, match=r"row 0/0.*delete the file to start over"):
                bench(session, requests(), OPTIONS, journal)


# The table.


def test_the_table_fits(session: Session) -> None:
    result = bench(session, requests(6), OPTIONS)
    assert [line.split()[:2] for line in render(result).splitlines()[4:7]] == [["b", "3"], ["a", "3"], ["all", "6"]]
    long = [replace(route, route=name) for route, name in zip(result.routes, ("x" * 200, "会話" * 30), strict=True)]
    wild = [
        pair(0, run(1e6, emitted=1), run(1e-3, drafted_by_position=(3,) * 40, accepted_by_position=(1,) * 40), "wild"),
        pair(1, run(1e3, emitted=1), run(1e3), "wild"),
    ]
    options = BenchOptions(
        num_draft_tokens=16, drafter="suffix+model", temperature=0.123456, seed=2**62, max_new_tokens=10**6
    )
    for shown in (
        result,
        replace(result, routes=(*long, summarize("wild", wild)), options=options, bundle="b" * 60, host="GPU " * 40),
    ):
        from rich.cells import cell_len

        lines = render(shown).splitlines()
        assert max(cell_len(line) for line in lines) <= COLUMNS == 110


def test_the_table_says_what_was_found() -> None:
    pairs = [pair(number, run(8.0 + number), run(4.0), "code") for number in range(12)]
    alone = [pair(12, run(3.0), run(4.0), "alone")]
    routes = (summarize("code", pairs, lambda *_: 3.3), summarize("alone", alone))
    result = Bench("x.bundle", "fake", "a host", BenchOptions(num_draft_tokens=2), routes, None, (*pairs, *alone))
    text = render(result)
    lines = text.splitlines()
    assert lines[0] == "x.bundle on fake, greedy, 2 draft tokens a round, up to 128 new tokens"
    assert lines[1] == "a host"
    low, high = routes[0].speedup.low, routes[0].speedup.high
    assert lines[4].split() == [
        "code",
        "12",
        "3.38x",
        f"{low:.2f}",
        "to",
        f"{high:.2f}",
        "2.27",
        "3.38",
        "4.47",
        "4.72",
        "0%",
        "2.90x",
        "3.30x",
    ]
    assert lines[5].split() == ["alone", "1", "0.75x", "unknown", "0.75", "0.75", "0.75", "0.75", "100%", "0.80x", "-"]
    assert "code            plain" in text
    words = "2.00 tokens a round; accepted by position: 100%, 0%; time of the rounds:"
    assert f"code            {words}" in text
    assert " draft 25%, target 50%, host 25%" in " ".join(text.split())
    assert lines[-1] == "outputs: 13 equal, 0 equal up to a near tie of two logits, 0 different"
    times = next(line for line in lines if line.startswith("alone") and "speculative" in line).split()
    assert times == ["alone", "speculative", *["400.00"] * 4, *["1500.00"] * 4]
