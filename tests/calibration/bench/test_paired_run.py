"""What a pair of runs records, and how its outputs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.calibration.bench import interleaved
from specexport.calibration.bench.interleaved import bench
from specexport.calibration.bench.results import Bench, BenchOptions
from specexport.calibration.bench.table import render
from specexport.calibration.measuring.prompts import Request
from specexport.runtime.proofs.equality import DecodedOutput
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics
from support.bench_runs import requests
from support.doubles import EOS, VOCAB, FakeDecoder, fake_session
from support.wrong_decoders import SeesStaleRows, WidthDependent

OPTIONS = BenchOptions(max_new_tokens=9)


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
    assert run.drafted_by_position == tuple(found.drafted_by_position)
    assert run.accepted_by_position == tuple(found.accepted_by_position)
    assert pair.plain.drafted_by_position == pair.plain.accepted_by_position == ()
    assert run.digest == pair.plain.digest
    assert len(run.digest) == 64
    parts = (run.draft_seconds, run.target_seconds, run.host_seconds)
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(run.decode_seconds)
    assert 0 < run.prefill_seconds < run.first_token_seconds < run.prefill_seconds + run.decode_seconds


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
