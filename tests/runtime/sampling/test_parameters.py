from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.runtime.sampling.options import Number
from specexport.runtime.sampling.parameters import SamplingParameters, with_overrides
from support.refusals import refused

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
COUNTS = ("top_k", "min_new_tokens", "max_new_tokens", "seed", "num_draft_tokens")
# One value at least of each kind that a check alone refuses: beyond either end, no number, no integer, another type.
REFUSED: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, 100.1, np.zeros((2, 2))),
    "top_p": (0.0, 1.1),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0.0099, 100.5),
    "presence_penalty": (-2.1, 2.1),
    "frequency_penalty": (-2.1, 2.1),
    "top_k": (-1, None),
    "min_new_tokens": (-1,),
    "max_new_tokens": (0, None, np.array([1, 2])),
    "seed": (-(2**63) - 1,),
    "num_draft_tokens": (-1,),
    "verification": ("blocks", None, ["block"]),
    "logit_bias": ([(1, 2.0)], None, {"a": 1.0}, {1: "x"}, {7: 100.5}, {7: math.nan}, {3: 10**400}, np.eye(20)),
    "banned_tokens": ((1.5,), "12", 5, [[1]], np.array(5)),
    "stop_token_ids": (np.array(5.0), np.array([[1], [2]])),
    "stop": (5, ["END", 5], "", ["x", ""], np.zeros((2, 2))),
    "speculate": ("no", None, np.ones((3, 3))),
    "drafter": (5, np.zeros((2, 2))),
    "route": (5,),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_are_refused(name: str) -> None:
    for value in REFUSED[name]:
        with pytest.raises(ParameterError, match=name):
            SamplingParameters(**{name: value})


@pytest.mark.parametrize("name", [*NUMBERS, *COUNTS])
def test_numbers_that_are_none(name: str) -> None:
    wrong: tuple[Any, ...] = ("hot", [1.0], math.nan, math.inf, 10**400) if name in NUMBERS else (1.5, "2", math.nan)
    for value in wrong:
        with pytest.raises(ParameterError, match=name):
            SamplingParameters(**{name: value})


def test_limits_themselves_are_allowed() -> None:
    for name, value in (
        ("temperature", 0),
        ("temperature", 100),
        ("top_p", 1),
        ("top_p", 1e-300),
        ("min_p", 0),
        ("min_p", 1),
    ):
        assert getattr(SamplingParameters(**{name: value}), name) == value  # type: ignore[arg-type]
    for penalty in (-2, 2):
        SamplingParameters(presence_penalty=penalty, frequency_penalty=penalty, logit_bias={0: 50 * penalty})
    SamplingParameters(repetition_penalty=0.01)
    SamplingParameters(repetition_penalty=100, top_k=0, min_new_tokens=0, seed=0)
    SamplingParameters(top_k=10**30, seed=10**30, min_new_tokens=10**30, max_new_tokens=10**30)


def test_ids_that_the_vocabulary_lacks() -> None:
    for parameters in (
        SamplingParameters(logit_bias={3: 1.0, 9: 1.0}),
        SamplingParameters(logit_bias={-1: 1.0}),
        SamplingParameters(banned_tokens=[0, 10**30]),
        SamplingParameters(banned_tokens=[-9]),
    ):
        with refused(ParameterError, "8", "0", field=("banned_tokens", "logit_bias")):
            parameters.check_tokens(9, ())
    SamplingParameters(logit_bias={0: 1.0, 8: 1.0}, banned_tokens=[0, 8]).check_tokens(9, ())


@pytest.mark.parametrize(
    ("banned", "stops", "minimum", "left"),
    [
        (range(5), (), 0, False),
        ([*range(5), 0, 0], (), 0, False),
        (range(4), (), 0, True),
        ([0, 0, 0, 1, 1], (), 0, True),
        (range(4), (4,), 0, True),
        (range(4), (4,), 1, False),
        ((), range(5), 1, False),
        (range(3), (4,), 1, True),
        ((0,), (5, 6, 7, 8, -1), 1, True),  # stop tokens that the vocabulary lacks forbid nothing
        (range(4), (9, 4), 1, False),
    ],
)
def test_one_token_must_be_left(banned: Any, stops: Any, minimum: int, left: bool) -> None:
    parameters = SamplingParameters(banned_tokens=banned, min_new_tokens=minimum)
    if left:
        parameters.check_tokens(5, stops)
        return
    with refused(ParameterError, "cover", field="banned_tokens"):
        parameters.check_tokens(5, stops)


def test_defaults_are_greedy_and_change_nothing() -> None:
    assert SamplingParameters().greedy
    assert not SamplingParameters(temperature=1e-9).greedy
    assert not SamplingParameters().adjusts_logits
    assert not SamplingParameters(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=3, verification="token"
    ).adjusts_logits


@pytest.mark.parametrize(
    "parameters",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
        {"logit_bias": {0: 0.5}},
        {"banned_tokens": [0]},
        {"min_new_tokens": 1},
    ],
)
def test_what_changes_logits(parameters: dict[str, Any]) -> None:
    assert SamplingParameters(**parameters).adjusts_logits


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (None, None),
        ((), ()),
        ("END", ("END",)),
        (["a", "b"], ("a", "b")),
        ((text for text in ("a", "b")), ("a", "b")),
        (dict.fromkeys(("a", "b")), ("a", "b")),
    ],
)
def test_stops_of_any_iterable(stop: Any, kept: tuple[str, ...] | None) -> None:
    assert SamplingParameters(stop=stop).stop == kept


def test_ids_of_any_iterable() -> None:
    parameters = SamplingParameters(banned_tokens=iter([1, 2]), stop_token_ids=(token for token in (3, 4)))
    assert (parameters.banned_tokens, parameters.stop_token_ids) == ((1, 2), (3, 4))
    assert SamplingParameters(stop_token_ids=np.int64(3)).stop_token_ids == (3,)  # type: ignore[arg-type]
    assert SamplingParameters(stop_token_ids=None).stop_token_ids is None


def test_equal_parameters_have_one_hash() -> None:
    options: dict[str, Any] = {"logit_bias": {3: 1.0, 1: 2.0}, "stop": ["a"], "banned_tokens": [1, 2], "seed": 3}
    one, other = SamplingParameters(**options), SamplingParameters(**options | {"logit_bias": {1: 2.0, 3: 1.0}})
    assert {one: "found"}[other] == "found"
    assert one not in {SamplingParameters(), SamplingParameters(**options | {"logit_bias": {}})}


def test_single_parameters_are_replaced_and_the_object_is_kept() -> None:
    params = SamplingParameters(temperature=0.5, stop="END", banned_tokens=[1])
    assert with_overrides(params, {}) is params
    other = with_overrides(params, {"temperature": 0.0, "top_k": 3})
    assert other == SamplingParameters(temperature=0.0, top_k=3, stop="END", banned_tokens=[1])
    assert params.temperature == 0.5
    assert with_overrides(None, {"seed": 1}) == SamplingParameters(seed=1)
    with refused(TypeError, "temprature"):
        with_overrides(params, {"temprature": 1.0})
    with refused(TypeError, "max_tokens"):
        with_overrides(None, {"max_tokens": 4})
    with refused(TypeError, "qqqqqq"):
        with_overrides(None, {"qqqqqq": 4})
    with refused(ParameterError, field="params"):
        with_overrides({"temperature": 1.0}, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [one.name for one in fields(SamplingParameters) if isinstance(one.metadata["option"], Number)] + ["top_k"]
)
def test_no_device_ignores_what_shapes_the_distribution(name: str) -> None:
    """Its rules read it, or the host runs the rounds."""
    usual = SamplingParameters(temperature=1.0)
    given = replace(usual, **{name: 7 if name == "top_k" else 0.5})
    assert given.needs_host or given.device_row != usual.device_row
