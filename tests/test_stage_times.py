"""The last lines of a build: what each stage took adds up to what the command took."""

from __future__ import annotations

import random

import pytest
from specexport.cli.progress import time_lines
from specexport.editing.progress import StageTime


def numbers(lines: list[str]) -> list[float]:
    return [float(line.split()[-2]) for line in lines if line.endswith(" s")]


def test_what_no_stage_took_has_a_line_of_its_own() -> None:
    stages = [StageTime("check the pair", 0.12, False), StageTime("export target", 0.0, True)]
    assert time_lines([*stages, StageTime("prove", 2.04, False)], 6.31) == [
        "check the pair          0.1 s",
        "export target        reused",
        "prove                   2.0 s",
        "everything else         4.2 s",
        "total                   6.3 s",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_lines_add_up_whatever_is_rounded(seed: int) -> None:
    draw = random.Random(seed)
    stages = [StageTime(str(index), draw.random(), False) for index in range(draw.randint(1, 12))]
    told = numbers(time_lines(stages, sum(stage.seconds for stage in stages) + draw.random() / 10))
    assert sum(told[:-1]) == pytest.approx(told[-1])
    assert min(told) >= 0
