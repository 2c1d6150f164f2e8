"""Which rows states have taken in: against a list of the rows themselves, over random rounds."""

from __future__ import annotations

import random

import pytest
from specexport.engines.open_rows import OpenRows
from specexport.errors import EngineError


class Taken:
    """What a graph does with the counts: rows that are certain, and those that are open, by their tokens."""

    def __init__(self, window: int, keeps: bool) -> None:
        self.rows = OpenRows(window, keeps)
        self.window = window
        self.certain: list[int] = []
        self.open: list[int] = []

    def step(self, tokens: list[int], position: int) -> None:
        if not position:
            self.certain, self.open = [], []
        pending, certain = self.rows.begin(position, len(tokens))
        joined = self.open[:pending] + tokens
        self.certain += joined[:certain]
        self.open = joined[certain:]
        assert len(self.open) <= self.window
        self.rows.finish(len(self.certain), len(self.certain) + len(self.open))

    @property
    def sequence(self) -> list[int]:
        return self.certain + self.open


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_rows_are_the_sequence_however_many_are_accepted(keeps: bool, seed: int) -> None:
    draw, window = random.Random(seed), 5
    taken, sequence = Taken(window, keeps), [draw.randrange(100) for _ in range(draw.randrange(1, 40))]
    taken.step(sequence, 0)
    for _ in range(100):
        position = draw.randint(taken.rows.start, len(sequence))
        if not position:
            continue
        tokens = [draw.randrange(100) for _ in range(draw.randint(1, window))]
        sequence = sequence[:position] + tokens
        taken.step(tokens, position)
        assert taken.sequence == sequence


def test_a_target_is_rolled_back_into_its_last_pass_and_a_draft_over_a_round() -> None:
    target, draft = Taken(5, keeps=False), Taken(5, keeps=True)
    for taken in (target, draft):
        taken.step([1, 2, 3, 4, 5, 6, 7, 8], 0)  # a chunk: its last rows stay open
        assert (taken.rows.start, taken.rows.end) == (3, 8)
        taken.step([9, 10], 8)
        taken.step([11], 10)
        taken.step([12], 11)
    assert [rows for rows in range(14) if target.rows.resumable(rows) == rows] == [0, 11, 12]
    assert [rows for rows in range(14) if draft.rows.resumable(rows) == rows] == [0, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("position", [2, 13])
def test_rows_that_the_states_do_not_hold_are_refused(position: int) -> None:
    taken = Taken(5, keeps=False)
    taken.step(list(range(12)), 0)
    with pytest.raises(
        EngineError, match=f"cannot continue after {position} rows: the states hold 7 to 12; start at 0"
    ):
        taken.rows.begin(position, 1)
    assert taken.rows.resumable(12) == 12


def test_nothing_is_known_of_states_behind_a_pass_that_failed() -> None:
    rows = OpenRows(5, keeps=False)
    rows.begin(0, 8)
    rows.finish(3, 8)
    rows.begin(8, 1)  # and no finish
    assert [rows.resumable(count) for count in (0, 7, 8)] == [0, 0, 0]
    assert rows.begin(0, 2) == (0, 0)
