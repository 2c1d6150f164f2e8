from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.exporter.tuning.answers import TOP, Answer
from specexport.exporter.tuning.options import TuneOptions
from specexport.exporter.tuning.split import check_length, split
from support.refusals import refused
from support.tuning import requests


def test_prompts_that_repeat_are_split_once() -> None:
    again = [replace(request, line=request.line + 100, max_new_tokens=5) for request in requests(20)]
    made = split([*requests(20), *again], [], [])
    learned = {one.tokens for part in (made.training, made.choosing) for one in part}
    assert [len(part) for part in (made.training, made.choosing, made.judging)] == [14, 2, 4]
    assert not learned & {one.tokens for one in made.judging}
    assert made.left_out == ("20 of the 40 prompts, which repeat others",)
    with refused(ParameterError, "20", "4", field="prompts"):
        split(requests(1) * 40, [], [])


def test_prompts_only_to_judge_are_not_trained_on() -> None:
    only = requests(4, "other")
    others = [*(replace(request, route="other") for request in requests(20)), *only, *only[:1]]
    made = split(requests(20), others, [*only, *requests(3, "general")])
    assert list(made.judging[4:]) == only
    assert [one.route for one in made.general] == ["general"] * 3
    (message,) = made.left_out
    assert message.startswith("21 of the 25 prompts of --judge")


def test_prompts_are_split_by_route_and_never_shared() -> None:
    made = split([*requests(20), *requests(20, "prose")], requests(2, "letters"), [])
    assert [len(part) for part in (made.training, made.choosing, made.judging)] == [28, 4, 10]
    assert Counter(one.route for one in made.judging) == {"code": 4, "prose": 4, "letters": 2}
    assert made.routes == ("code", "prose")
    assert not set(made.training) & set(made.judging)
    assert not set(made.choosing) & set(made.judging)
    jobs = made.jobs(TuneOptions(answers=3))
    assert len(jobs["training"]) == 3 * 28
    # At temperature 0 two of three answers are one.
    assert len({job.key for part in jobs.values() for job in part}) == 2 * 28 + 4 + 10


@pytest.mark.parametrize("sizes", [[5] * 20, [10, 10], [19, 1], [1] * 20, [7, 13, 24]])
def test_small_routes_are_split_together(sizes: list[int]) -> None:
    routes = [str(route) for route, size in enumerate(sizes) for _ in range(size)]
    given = [replace(one, route=route) for one, route in zip(requests(len(routes)), routes, strict=True)]
    made = split(given, [], [])
    assert len(made.judging) >= sum(sizes) // 10 * 2 >= 4
    assert len(made.choosing) >= sum(sizes) // 10
    assert len(made.training) + len(made.choosing) + len(made.judging) == sum(sizes)


def test_too_few_prompts_to_judge_by() -> None:
    with refused(ParameterError, "19", field="prompts"):
        split(requests(19), requests(50, "other"), [])


def test_answers_too_short_to_judge_by() -> None:
    short = Answer("code", (1,), (2, 3), np.zeros((2, TOP), np.int32), np.zeros((2, TOP), np.float16))
    with refused(ParameterError, "--max-new-tokens", field="prompts"):
        check_length([short] * 5)
