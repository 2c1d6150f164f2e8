"""In which order requests run, what is asked of the session, what a pair of runs records, and how an interrupted run
goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from specexport.calibration.bench import interleaved
from specexport.calibration.bench import interleaved as module
from specexport.calibration.bench.interleaved import bench, check, journal_header
from specexport.calibration.bench.results import Bench, BenchOptions, PairedRun
from specexport.calibration.bench.table import render
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.prompts import Request
from specexport.errors import OutputError, ParameterError
from specexport.runtime.proofs.equality import DecodedOutput
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics
from support.bench_runs import requests
from support.doubles import CONTRACT, EOS, VOCAB, FakeDecoder, fake_session
from support.refusals import refused
from support.wrong_decoders import SeesStaleRows, WidthDependent

OPTIONS = BenchOptions(max_new_tokens=9)
Call = dict[str, Any]


def streams(calls: list[Call]) -> list[Call]:
    return [call for call in calls if "prompt" in call]


def stable(pairs: Sequence[PairedRun]) -> list[dict[str, Any]]:
    """Pairs without their times."""

    def counts(run: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in run.items() if not key.endswith("_seconds")}

    return [row | {way: counts(row[way]) for way in ("plain", "speculative")} for row in map(asdict, pairs)]


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
            assert call["stop_token_ids"] is None  # the model's own
            if call["speculate"]:
                assert (call["num_draft_tokens"], call["drafter"], call["route"]) == (3, "model", request.route)


def test_the_first_request_warms_up_and_does_not_count(session: Session, calls: list[Call]) -> None:
    result = bench(session, requests(2), OPTIONS)
    made = [(call["prompt"], call["speculate"]) for call in streams(calls)]
    assert len(made) == 6
    assert made[:2] == made[2:4]
    assert len(result.pairs) == 2


def test_a_run_looks_up_in_answers_to_earlier_requests_but_not_to_its_own(session: Session) -> None:
    (one,) = requests(1)
    options = replace(OPTIONS, num_draft_tokens=3, drafter="ngram", repeats=2)
    (alone,) = bench(session, [one], replace(options, repeats=1)).pairs
    pairs = bench(session, [one, one], options).pairs
    assert [pair.repeat for pair in pairs] == [0, 0, 1, 1]
    assert [pair.speculative.rounds for pair in pairs[::2]] == [alone.speculative.rounds] * 2
    assert all(pair.speculative.rounds <= 3 < alone.speculative.rounds for pair in pairs[1::2])
    assert all(pair.plain.rounds == alone.plain.rounds for pair in pairs)


def test_as_dict_is_json(session: Session) -> None:
    result = bench(session, requests(3), OPTIONS)
    row = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    keys = ["passed", "bundle", "engine", "host", "options", "routes", "overall", "pairs", "follows_policy"]
    assert list(row) == keys
    assert not row["follows_policy"]
    assert row["engine"] == "fake"
    assert row["bundle"] == "bundle"
    assert row["options"]["max_new_tokens"] == 9
    assert len(row["pairs"]) == 3


def test_what_the_session_cannot_do(session: Session, calls: list[Call], tmp_path: Path) -> None:
    for options in (
        BenchOptions(num_draft_tokens=5),
        BenchOptions(drafter="oracle"),
    ):
        for refuse in (check, bench):
            with refused(ParameterError, field=("drafter", "num_draft_tokens")):
                refuse(session, requests(2), options)
    with refused(ParameterError, field="requests"):
        bench(session, [], OPTIONS)
    assert calls == []
    alone = fake_session(tmp_path / "alone", FakeDecoder(), None)
    with refused(ParameterError, "--draft", "model", field="drafter"):
        check(alone, requests(2), BenchOptions(drafter="model"))
    check(alone, requests(2), BenchOptions(drafter="ngram", num_draft_tokens=4))


@pytest.fixture
def opened(session: Session, tmp_path: Path) -> Callable[..., Journal]:
    def opened(given: Any = (), options: BenchOptions = OPTIONS) -> Journal:
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
    monkeypatch.setattr(module, "describe_host", lambda manifest, engine, device: f"another host with {engine}")
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
            with refused(OutputError, "0"):
                bench(session, requests(), OPTIONS, journal)


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
    worst = max(result.routes, key=lambda route: route.different)
    assert not replace(result, routes=(worst, replace(worst, different=0))).passed
    assert render(result).splitlines()[-1].startswith("FAILED: ")


def output(tokens: Sequence[int], width: int) -> DecodedOutput:
    return DecodedOutput(tuple(tokens), (width,) * len(tokens), (0,) * len(tokens), (), Statistics())


def test_what_counts_as_different(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    request = requests(1)[0]
    plain = list(session.generate(request.tokens, max_new_tokens=6).tokens)

    def compare(speculative: list[int]) -> str:
        return interleaved._compare(session, request, output(plain, 1), output(speculative, 5))

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


def test_what_a_run_records(session: Session) -> None:
    request = requests(1)[0]
    pair = bench(session, [request], replace(OPTIONS, num_draft_tokens=3)).pairs[0]
    session.reset()
    found = session.generate(request.tokens, max_new_tokens=9, num_draft_tokens=3).statistics
    run = pair.speculative
    assert (run.emitted, run.rounds, run.looked_up) == (found.emitted, found.rounds, 0)
    assert run.rounds_by_drafter == found.rounds_by_drafter != {}
    assert run.drafted_by_position == tuple(found.drafted_by_position)
    assert run.accepted_by_position == tuple(found.accepted_by_position)
    assert pair.plain.drafted_by_position == pair.plain.accepted_by_position == ()
    assert run.digest == pair.plain.digest
    assert len(run.digest) == 64
    parts = (run.draft_seconds, run.target_seconds, run.host_seconds)
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(run.decode_seconds)
    assert 0 < run.prefill_seconds < run.first_token_seconds


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
