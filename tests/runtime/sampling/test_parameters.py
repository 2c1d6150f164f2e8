from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.runtime.sampling.parameters import UNADJUSTED, SamplingParameters, with_overrides
from support.refusals import refused

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
COUNTS = ("top_k", "min_new_tokens", "max_new_tokens", "seed", "num_draft_tokens")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 100.1),
        ("top_p", 0.0),
        ("top_p", -0.5),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 0.0099),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 100.5),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("top_k", -1),
        ("min_new_tokens", -1),
        ("seed", -(2**63) - 1),
        ("max_new_tokens", 0),
        ("num_draft_tokens", -1),
        ("verification", "blocks"),
    ],
)
def test_out_of_range(name: str, value: Any) -> None:
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_size(name: str, value: float) -> None:
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: value})


@pytest.mark.parametrize("name", [*NUMBERS, "logit_bias"])
def test_integers_that_no_float_holds(name: str) -> None:
    with refused(
        ParameterError,
        name,
        field=name,
    ):
        SamplingParameters(**{name: {3: 10**400} if name == "logit_bias" else 10**400})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["hot", None, [1.0], 1j])
def test_no_number(name: str, value: Any) -> None:
    if value is None and name in UNADJUSTED:
        assert getattr(SamplingParameters(**{name: None}), name) is None
        return
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1.5, "2", math.nan, [1]])
def test_no_whole_number(name: str, value: Any) -> None:
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: value})


@pytest.mark.parametrize("name", ["top_k", "max_new_tokens"])
def test_none_is_no_count(name: str) -> None:
    """For a seed it is no seed."""
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: None})
    assert SamplingParameters(seed=None).seed is None


@pytest.mark.parametrize("value", [None, 3, "blocks", ["block"]])
def test_no_verification(value: Any) -> None:
    with refused(ParameterError, "block", field="verification"):
        SamplingParameters(verification=value)


@pytest.mark.parametrize(
    "bias",
    [
        [(1, 2.0)],
        None,
        {"a": 1.0},
        {1.5: 1.0},
        {1: "x"},
        {1: None},
        {7: 100.5},
        {7: -101},
        {7: math.nan},
        {1: 1.0, 7: -math.inf},
    ],
)
def test_biases_that_are_none(bias: Any) -> None:
    with refused(ParameterError, field="logit_bias"):
        SamplingParameters(logit_bias=bias)


@pytest.mark.parametrize(
    "banned",
    [(1.5,), ["x"], "12", [None], [[1]], np.array([0.5])],
)
def test_bans_that_are_none(banned: Any) -> None:
    with refused(ParameterError, "whole", field="banned_tokens"):
        SamplingParameters(banned_tokens=banned)


@pytest.mark.parametrize("banned", [5, 1.5])
def test_bans_that_are_no_list(banned: Any) -> None:
    with refused(ParameterError, banned, field="banned_tokens"):
        SamplingParameters(banned_tokens=banned)


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


def test_numbers_may_come_from_numpy() -> None:
    values: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.int64(3),
        "top_p": np.float64(0.9),
        "seed": np.uint8(3),
    }
    SamplingParameters(**values, logit_bias={np.int32(1): np.float32(2)})  # type: ignore[dict-item]
    assert SamplingParameters(banned_tokens=np.array([1, 2])).adjusts_logits  # type: ignore[arg-type]


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


@pytest.mark.parametrize("stop", [5, b"END", ["END", 5], [None]])
def test_stops_that_are_none(stop: Any) -> None:
    with refused(ParameterError, "texts", field="stop"):
        SamplingParameters(stop=stop)


@pytest.mark.parametrize("stop", ["", ["x", ""]])
def test_an_empty_stop_is_refused(stop: Any) -> None:
    with refused(ParameterError, "string", field="stop"):
        SamplingParameters(stop=stop)


def test_ids_of_any_iterable() -> None:
    parameters = SamplingParameters(banned_tokens=iter([1, 2]), stop_token_ids=(token for token in (3, 4)))
    assert (parameters.banned_tokens, parameters.stop_token_ids) == ((1, 2), (3, 4))
    assert SamplingParameters(stop_token_ids=np.int64(3)).stop_token_ids == (3,)  # type: ignore[arg-type]
    assert SamplingParameters(stop_token_ids=None).stop_token_ids is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("speculate", np.array([1, 1])),
        ("speculate", np.ones((3, 3))),
        ("speculate", np.array([])),
        ("stop_token_ids", np.array(5.0)),
        ("stop_token_ids", np.array([[1], [2]])),
        ("banned_tokens", np.array(5)),
        ("stop", np.array("x")),
        ("stop", np.zeros((2, 2))),
        ("max_new_tokens", np.array([1, 2])),
        ("temperature", np.zeros((2, 2))),
        ("logit_bias", np.eye(20)),
        ("drafter", np.zeros((2, 2))),
    ],
    ids=range(12),
)
def test_arrays_that_are_no_such_option(name: str, value: Any) -> None:
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: value})


def test_arrays_without_dimensions_are_numbers() -> None:
    given: dict[str, Any] = {"stop_token_ids": np.array(5), "max_new_tokens": np.array(7), "speculate": np.array(0)}
    parameters = SamplingParameters(**given)
    assert (parameters.stop_token_ids, parameters.max_new_tokens, parameters.speculate) == ((5,), 7, False)
    assert type(parameters.stop_token_ids[0]) is type(parameters.max_new_tokens) is int  # type: ignore[index]


def test_an_error_of_a_generator_is_its_own() -> None:
    def ids() -> Iterator[int]:
        yield 1
        raise TypeError("the caller's own")

    with pytest.raises(TypeError, match="the caller's own"):
        SamplingParameters(banned_tokens=ids())


def test_equal_parameters_have_one_hash() -> None:
    options: dict[str, Any] = {"logit_bias": {3: 1.0, 1: 2.0}, "stop": ["a"], "banned_tokens": [1, 2], "seed": 3}
    one, other = SamplingParameters(**options), SamplingParameters(**options | {"logit_bias": {1: 2.0, 3: 1.0}})
    assert {one: "found"}[other] == "found"
    assert one not in {SamplingParameters(), SamplingParameters(**options | {"logit_bias": {}})}


@pytest.mark.parametrize(("name", "value"), [("speculate", "no"), ("speculate", None), ("drafter", 5), ("route", 5)])
def test_names_and_switches(name: str, value: Any) -> None:
    with refused(ParameterError, name, field=name):
        SamplingParameters(**{name: value})


def test_the_minimum_length_is_no_more_than_the_maximum() -> None:
    with refused(ParameterError, "max_new_tokens", field="min_new_tokens"):
        SamplingParameters(min_new_tokens=5, max_new_tokens=4)
    SamplingParameters(min_new_tokens=4, max_new_tokens=4)


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


def test_what_was_given_may_change_afterwards() -> None:
    bias = {1: 1.0}
    parameters = SamplingParameters(logit_bias=bias)
    bias[1] = 1e9
    assert parameters.logit_bias == {1: 1.0}
