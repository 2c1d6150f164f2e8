from __future__ import annotations

from typing import Any

import pytest
from specexport.calibration.bench.results import BenchOptions
from specexport.errors import ParameterError
from support.bench_runs import run
from support.refusals import refused


@pytest.mark.parametrize(
    "options",
    [
        dict(num_draft_tokens=0),
        dict(repeats=0),
        dict(max_new_tokens=0),
        dict(temperature=-1.0),
        dict(top_k=-1),
        dict(top_p=0.0),
        dict(seed=-(2**63) - 1),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with refused(ParameterError, field=next(iter(options))):
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
        with refused(ValueError, "impossible"):
            run(**({"decode": 1.0} | harm))
