from __future__ import annotations

from typing import Any

import pytest
from specexport.calibration.bench.results import BenchOptions
from specexport.errors import ParameterError
from support.bench_runs import run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_draft_tokens=0), "num_draft_tokens is 0; it must be at least 1, or there is nothing to compare"),
        (dict(repeats=0), "repeats is 0"),
        (dict(max_new_tokens=0), "max_new_tokens is 0"),
        (dict(temperature=-1.0), "temperature is -1.0"),
        (dict(top_k=-1), "top_k is -1"),
        (dict(top_p=0.0), "top_p is 0.0"),
        (dict(seed=-(2**63) - 1), "seed is -"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        BenchOptions(**options)


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
