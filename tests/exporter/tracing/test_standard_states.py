"""States in standard operators, in torch: against one row at a time in fp64, with any rows rejected."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from specexport.exporter.tracing.recurrences import OpenStates, Recurrence
from specexport.exporter.tracing.standard_states import Order, _solved, advance, convolve
from torch import Tensor

WINDOW, WIDEST = 4, 16
HEADS, KEY_HEADS, KEY, VALUE = 4, 2, 8, 6
# One row at a time in fp32 is as far off: sums of a few hundred numbers of size 1.
NEAR = 2e-5


# What rows may hold that do not count: a number that shows wherever it is let in, and what spreads from anywhere.
REJECTED = [1e4, float("nan")]


def states_of(pending: int, certain: int, widest: int = WIDEST) -> OpenStates:
    return OpenStates(torch.tensor([pending]), torch.tensor([certain]), WINDOW, widest, {})


def rows_of(count: int, rule: str, seed: int, decay: float = 0.3) -> Recurrence:
    made = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    keys = torch.nn.functional.normalize(draw(1, count, KEY_HEADS, KEY), dim=-1).flatten(2)
    parts = (draw(1, count, KEY_HEADS * KEY), keys, draw(1, count, HEADS * VALUE), -decay * draw(1, count, HEADS).abs())
    beta = (torch.rand(1, count, HEADS, generator=made),) if rule == "gated_delta" else ()
    return Recurrence((*parts, *beta), KEY_HEADS, HEADS, rule, 0.5, lambda output: output)  # type: ignore[arg-type]


def joined(given: Recurrence) -> Tensor:
    return torch.cat(given.parts, -1)


def one_by_one(rows: Tensor, given: Recurrence, state: Tensor) -> tuple[Tensor, Tensor]:
    """rows `[n, all parts]`, state `[heads, key, value]`, fp64: the definition, a row and a head at a time."""
    sizes, outputs = [part.shape[-1] for part in given.parts], []
    for row in rows:
        query, key, value, decay, *beta = row.split(sizes)
        query, key = (part.reshape(KEY_HEADS, KEY).repeat_interleave(HEADS // KEY_HEADS, 0) for part in (query, key))
        value, state = value.reshape(HEADS, VALUE), state * decay.exp()[:, None, None]
        if beta:
            value = beta[0][:, None] * (value - torch.einsum("hkv,hk->hv", state, key))
        state = state + torch.einsum("hk,hv->hkv", key, value)
        outputs.append(given.scale * torch.einsum("hkv,hk->hv", state, query).flatten())
    return torch.stack(outputs) if outputs else torch.zeros(0, HEADS * VALUE, dtype=rows.dtype), state


Rule = Literal["gated", "gated_delta"]


@pytest.mark.parametrize("rejected", REJECTED)
@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
@pytest.mark.parametrize("width", [1, 2, WINDOW, 7, WIDEST])
def test_a_pass_is_one_row_at_a_time(rule: Rule, width: int, rejected: float) -> None:
    """For every number of open rows that counts and every number that becomes certain."""
    made = torch.Generator().manual_seed(width)
    before = torch.randn(1, HEADS, KEY, VALUE, generator=made)
    new = rows_of(width, rule, seed=1)
    for pending in range(WINDOW + 1):
        open_rows = joined(rows_of(WINDOW, rule, seed=2))
        counted = torch.cat([open_rows[0, :pending], joined(new)[0]]).double()
        open_rows[:, pending:] = rejected
        for certain in range(max(0, pending + width - WINDOW), pending + width + 1):
            past = dict(state=before, rows=open_rows)
            output, rows, state = advance(states_of(pending, certain), past, joined(new), new)
            expected, _ = one_by_one(counted, new, before[0].double())
            _, after = one_by_one(counted[:certain], new, before[0].double())
            torch.testing.assert_close(output[0].double(), expected[pending:], atol=NEAR, rtol=NEAR)
            torch.testing.assert_close(state[0].double(), after, atol=NEAR, rtol=NEAR)
            assert torch.equal(rows[0, : len(counted) - certain].double(), counted[certain:])


@pytest.mark.parametrize("count", [1, 2, 5, 17, 20])
def test_keys_that_repeat_cost_no_digits(count: int) -> None:
    """Where all keys are one, powers of the matrix have entries of 1e5 at 20 rows, whose differences are the result."""
    ahead, given = torch.tril(torch.ones(1, count, count), -1), torch.ones(1, count, 3)
    found = _solved(ahead, given, Order.of(states_of(0, 0), count))
    expected = torch.linalg.solve_triangular(torch.eye(count) + ahead, given, upper=False)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
@pytest.mark.parametrize("width", [64, 256])
def test_strong_decays_cost_no_digits(rule: Rule, width: int) -> None:
    """A = -16, as Mamba-2 begins: a chunk's decays sum up to 2300, which fp32 knows to 1e-4. One row at a time adds no
    two of them, so what it is off by comes from the products alone.
    """
    made = torch.Generator().manual_seed(0)
    steps = 0.001 * torch.exp(math.log(4000) * torch.rand(1, width, HEADS, generator=made))
    new = rows_of(width, rule, seed=1)
    new = replace(new, parts=(*new.parts[:3], -16 * steps, *new.parts[4:]))
    before, open_rows = torch.randn(1, HEADS, KEY, VALUE, generator=made), joined(rows_of(WINDOW, rule, seed=2))
    counted = torch.cat([open_rows[0, :2], joined(new)[0]])
    output, _, state = advance(states_of(2, width, 256), dict(state=before, rows=open_rows), joined(new), new)
    exact, narrow = (
        (one_by_one(rows, new, start)[0][2:], one_by_one(rows[:width], new, start)[1])
        for rows, start in ((counted.double(), before[0].double()), (counted, before[0]))
    )
    for found, expected, plain in zip((output[0], state[0]), exact, narrow, strict=True):
        assert (found - expected).abs().max() <= 4 * (plain - expected).abs().max()


def spoilt(given: Recurrence, part: int, row: int, what: float) -> Recurrence:
    """One number of one part of a row, in the last head."""
    parts = [each.clone() for each in given.parts]
    parts[part][0, row, -1] = what
    return replace(given, parts=tuple(parts))


@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
@pytest.mark.parametrize("what", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_no_number_spreads_as_one_row_at_a_time(rule: Rule, what: float) -> None:
    """As where fp16 overflows. It may be a draft token's, so it harms none before it; if it counts, all behind it."""
    pending, open_rows = 2, rows_of(WINDOW, rule, seed=2)
    new = rows_of(WINDOW, rule, seed=1)
    before = torch.randn(1, HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(0))
    for part in range(len(new.parts)):
        for row in range(pending + WINDOW):
            old = spoilt(open_rows, part, row, what) if row < pending else open_rows
            fed = spoilt(new, part, row - pending, what) if row >= pending else new
            counted = torch.cat([joined(old)[0, :pending], joined(fed)[0]])
            for certain in range(pending, pending + WINDOW + 1):
                past = dict(state=before, rows=joined(old))
                output, _, state = advance(states_of(pending, certain), past, joined(fed), fed)
                expected, _ = one_by_one(counted.double(), fed, before[0].double())
                _, after = one_by_one(counted[:certain].double(), fed, before[0].double())
                lost = ~expected[pending:].isfinite().all(1)
                assert output[0, lost].isnan().all()
                torch.testing.assert_close(output[0, ~lost].double(), expected[pending:][~lost], atol=NEAR, rtol=NEAR)
                if after.isfinite().all():
                    torch.testing.assert_close(state[0].double(), after, atol=NEAR, rtol=NEAR)
                else:
                    assert state.isnan().all()


@pytest.mark.parametrize("width", [1, 3, WINDOW, WIDEST])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("rejected", REJECTED)
def test_a_convolution_reads_what_counts(width: int, activation: Any, rejected: float) -> None:
    ahead, channels = 3, 5
    weight, bias, text = torch.randn(channels, ahead + 1), torch.randn(channels), torch.randn(1, 40, channels)
    for pending in range(WINDOW + 1):
        past = torch.full((1, ahead + WINDOW, channels), rejected)
        past[:, : ahead + pending] = text[:, : ahead + pending]
        new = text[:, ahead + pending : ahead + pending + width]
        for certain in range(max(0, pending + width - WINDOW), pending + width + 1):
            output, present = convolve(states_of(pending, certain), past, new, weight, bias, activation)
            seen = text[:, pending : ahead + pending + width].unfold(1, ahead + 1, 1)
            expected = (seen * weight).sum(-1) + bias
            if activation:
                expected = torch.nn.functional.silu(expected)
            torch.testing.assert_close(output, expected, atol=NEAR, rtol=NEAR)
            known = text[0, certain : ahead + pending + width]
            assert torch.equal(present[0, : len(known)], known)


def test_a_state_over_a_long_text_with_drafts_that_are_rejected() -> None:
    """What rounding leaves behind fades: after 600 rows in random passes the state is as near as after 20."""
    draw, rule = random.Random(0), "gated_delta"
    given = rows_of(600, rule, seed=3, decay=0.05)
    text, position, start = joined(given), 0, 0
    state, open_rows = torch.zeros(1, HEADS, KEY, VALUE), torch.zeros(1, WINDOW, text.shape[-1])
    while position < 590:
        width = draw.choice([1, 2, WINDOW])
        right = draw.randint(1, width)
        fed = text[:, position : position + width].clone()
        fed[:, right:] = joined(rows_of(width, rule, seed=draw.randrange(1000)))[:, right:]
        pending, certain = position - start, position - start
        _, open_rows, state = advance(states_of(pending, certain), dict(state=state, rows=open_rows), fed, given)
        start, position = position, position + right
    _, expected = one_by_one(text[0, :start].double(), given, torch.zeros(HEADS, KEY, VALUE).double())
    torch.testing.assert_close(state[0].double(), expected, atol=NEAR, rtol=NEAR)


def test_what_spreads_and_what_does_not() -> None:
    """Told apart by hand: a query is read by its own row alone, and a decay of -inf is a number."""
    new = rows_of(WINDOW, "gated_delta", seed=1)
    past = dict(state=torch.ones(1, HEADS, KEY, VALUE), rows=joined(rows_of(WINDOW, "gated_delta", seed=2)))

    def harmed(part: int, what: float) -> list[bool]:
        given = spoilt(new, part, 1, what)
        output, _, state = advance(states_of(0, 2), past, joined(given), given)
        return [*output[0].isnan().all(1).tolist(), bool(state.isnan().all())]

    query, value, decay = 0, 2, 3
    assert harmed(query, math.inf) == [False, True, False, False, False]
    assert harmed(value, math.inf) == [False, True, True, True, True]
    assert harmed(decay, -math.inf) == [False] * 5
