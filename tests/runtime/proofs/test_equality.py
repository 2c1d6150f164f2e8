from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.runtime.proofs.equality import (
    Equality,
    RowExactness,
    check_equality,
    decode_request,
    judge,
    measure_rows,
    plain_at_widths,
)
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.doubles import CONTRACT, VOCAB, FakeDecoder, fake_session, greedy_tokens
from support.wrong_decoders import SeesStaleRows, WidthDependent


@pytest.mark.parametrize("length", [1, 2, 9, 30])
def test_a_right_pair_is_equal_at_every_width(tmp_path: Path, length: int) -> None:
    session = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    result = check_equality(session, list(range(length)), 12)
    assert result == Equality(True, None)
    assert result.passed


def test_a_near_tie_that_another_width_turns_passes(tmp_path: Path) -> None:
    target = WidthDependent()
    target.shift = 2e-4
    session = fake_session(tmp_path, target, FakeDecoder(noise=0.4))
    for prompt in ([5], [5, 6, 7], list(range(20))):
        result = check_equality(session, prompt, 12)
        assert result.same_width
        assert result.first_difference == 0
        assert result.margin == pytest.approx(1e-4, rel=0.1)
        assert result.delta == pytest.approx(2e-4, rel=0.1)
        assert result.passed


def test_a_third_token_at_a_near_tie_fails(tmp_path: Path) -> None:
    target = WidthDependent()
    target.shift = 2e-4
    session = fake_session(tmp_path, target, FakeDecoder(noise=0.4))
    plain = session.generate([5, 6, 7], max_new_tokens=1, speculate=False).tokens
    for token, passes in (((plain[0] + 1) % VOCAB, True), ((plain[0] + 2) % VOCAB, False)):
        assert judge(session, [5, 6, 7], plain, [token], [5]).near_tie == passes


def test_a_decoder_that_reads_stale_rows_fails(tmp_path: Path) -> None:
    session = fake_session(tmp_path, SeesStaleRows(), FakeDecoder(noise=0.4))
    assert not check_equality(session, [1, 2, 3], 12).passed


@pytest.mark.parametrize("width", [1, 2, 5])
def test_plain_at_widths_is_plain_and_as_wide_as_told(width: int) -> None:
    target = FakeDecoder()
    assert plain_at_widths(target, [1, 2, 3], [width] * 10, 8, CONTRACT.capacity) == greedy_tokens(
        target, [1, 2, 3], 10
    )
    assert target.steps[1:] == [(width, position) for position in range(2, 12)]


@pytest.mark.parametrize("drafter", ["model", "ngram", "ngram+model"])
def test_rounds_of_many_widths_are_replayed_as_they_were(tmp_path: Path, drafter: str) -> None:
    """The second id leads in passes of four tokens only, so equality at any one width would not hold."""

    class OneWidth(WidthDependent):
        def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
            self.shift = 2e-4 if self.width == 4 else 0.0
            return super().logits_after(context)

    session = fake_session(tmp_path, OneWidth(), FakeDecoder(noise=0.4))
    for prompt in ([5, 6, 7], [1, 2, 3, 1, 2, 3, 1, 2], list(range(20))):
        result = check_equality(session, prompt, 12, drafter)
        assert result.same_width
        assert result.passed


class RowDependent(WidthDependent):
    """The second id moves up in every row of a pass but its first, as products on a GPU may be rounded."""

    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        self.width = 1 + (len(context) > self.steps[-1][1] + 1)
        return super().logits_after(context)


def on_a_gpu(session: Session) -> Session:
    session.engine = replace(session.engine, name="tensorrt")
    return session


def test_rows_that_differ_within_a_pass_are_near_ties_on_a_gpu_alone(tmp_path: Path) -> None:
    target = RowDependent()
    target.shift = 2e-4
    session = fake_session(tmp_path, target, FakeDecoder(noise=0.0))
    target.gap = 1e-4
    found = [check_equality(session, prompt, 12) for prompt in ([5, 6, 7], list(range(20)))]
    assert not any(result.same_width or result.passed for result in found)
    found = [check_equality(on_a_gpu(session), prompt, 12) for prompt in ([5, 6, 7], list(range(20)))]
    assert all(result.row_tie and result.passed for result in found)
    assert not any(result.same_width for result in found)
    rows = measure_rows(target, list(range(20)), CONTRACT)
    assert rows.exact == 0
    assert 0 < rows.delta < 1e-4
    assert measure_rows(FakeDecoder(), list(range(20)), CONTRACT) == RowExactness(rows.rows, rows.rows, 0.0)


@pytest.mark.parametrize("kind", [RowDependent, WidthDependent])
def test_rows_that_differ_by_more_than_rounding_are_no_near_tie(tmp_path: Path, kind: type[WidthDependent]) -> None:
    """What a row that reads another's cache does: the gap is small beside it."""
    target = kind()
    target.gap, target.shift = 1.0, 30.0
    assert not check_equality(on_a_gpu(fake_session(tmp_path, target, FakeDecoder())), [5, 6, 7], 12).passed


def test_a_token_that_no_row_gives_is_no_near_tie(tmp_path: Path) -> None:
    """As of a loop that takes the wrong row."""
    session = on_a_gpu(fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4)))
    plain, output = plain_and_speculative(session, [1, 2, 3], max_new_tokens=12)
    tokens = [*output.tokens[:5], (output.tokens[5] + 1) % VOCAB, *output.tokens[6:]]
    found = judge(session, [1, 2, 3], plain, tokens, output.widths, rows=output.rows)
    assert not any((found.row_tie, found.near_tie, found.passed))


def plain_and_speculative(session: Any, prompt: list[int], **options: Any) -> tuple[tuple[int, ...], Any]:
    ways = [SamplingParameters(speculate=speculate, **options) for speculate in (False, True)]
    found = [decode_request(session, prompt, way) for way in ways]
    assert set(found[0].widths) == {1} != set(found[1].widths)
    return found[0].tokens, found[1]


@pytest.mark.parametrize("kept", [0, 1, 7, 11])
def test_an_output_that_ends_before_the_other_fails_both_tiers(tmp_path: Path, kept: int) -> None:
    session = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    plain, output = plain_and_speculative(session, [1, 2, 3], max_new_tokens=12)
    assert judge(session, [1, 2, 3], plain, output.tokens, output.widths) == Equality(True, None)
    shorter = judge(session, [1, 2, 3], plain, output.tokens[:kept], output.widths[:kept])
    longer = judge(session, [1, 2, 3], plain[:kept], output.tokens, output.widths)
    for found in (shorter, longer):
        assert found == Equality(False, kept, complete=False)
        assert not found.near_tie
    # A stop token at the end of what only ends earlier excuses nothing: the other has it as well and goes on.
    if kept:
        stop = {plain[kept - 1]}
        assert not judge(session, [1, 2, 3], plain, output.tokens[:kept], output.widths[:kept], stop).passed


def test_behind_a_near_tie_lengths_differ_only_by_a_stop_token(tmp_path: Path) -> None:
    target = WidthDependent()
    target.shift = 2e-4
    session = fake_session(tmp_path, target, FakeDecoder(noise=0.4))
    plain, output = plain_and_speculative(session, [5, 6, 7], max_new_tokens=12)
    tokens, widths = output.tokens[:7], output.widths[:7]
    assert judge(session, [5, 6, 7], plain, tokens, widths, {tokens[-1]}).passed
    assert judge(session, [5, 6, 7], plain[:4], output.tokens, output.widths, {plain[3]}).passed
    for stops in ((), {plain[-1]} - {tokens[-1]}):
        assert judge(session, [5, 6, 7], plain, tokens, widths, stops) == Equality(False, 0, complete=False)


class EndsRoundsEarly(Session):
    """What a broken loop would do: speculative output lacks its end."""

    def stream(self, prompt: Any, params: Any, schedule: Any = None, **overrides: Any) -> Any:
        for chunk in super().stream(prompt, params, schedule, **overrides):
            if overrides.get("speculate", True) and chunk.statistics.emitted > 6:
                return
            yield chunk


def test_a_session_that_loses_tokens_is_found_out(tmp_path: Path) -> None:
    whole = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    assert check_equality(whole, [1, 2, 3], 12).passed
    found = check_equality(EndsRoundsEarly(whole.bundle, whole.engine), [1, 2, 3], 12)
    assert not found.complete
    assert not found.passed
