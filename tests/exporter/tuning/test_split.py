from __future__ import annotations

from collections import Counter
from dataclasses import replace

from specexport.errors import ParameterError
from specexport.exporter.tuning.options import TuneOptions, split
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


def test_too_few_prompts_to_judge_by() -> None:
    with refused(ParameterError, "19", field="prompts"):
        split(requests(19), requests(50, "other"), [])
