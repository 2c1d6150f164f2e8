from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.runtime.sampling.parameters import SamplingParameters, with_overrides

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
COUNTS = ("top_k", "min_new_tokens", "max_new_tokens", "seed", "num_draft_tokens")


def refusal(**parameters: Any) -> str:
    with pytest.raises(ParameterError) as caught:
        SamplingParameters(**parameters)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "from 0 to 100 (0 is greedy)"),
        ("temperature", 100.1, "from 0 to 100 (0 is greedy)"),
        ("top_p", 0.0, "above 0 to 1 (1 is off)"),
        ("top_p", -0.5, "above 0 to 1 (1 is off)"),
        ("top_p", 1.1, "above 0 to 1 (1 is off)"),
        ("min_p", -0.1, "from 0 to 1 (0 is off)"),
        ("min_p", 1.1, "from 0 to 1 (0 is off)"),
        ("repetition_penalty", 0.0, "from 0.01 to 100 (1 is off)"),
        ("repetition_penalty", 0.0099, "from 0.01 to 100 (1 is off)"),
        ("repetition_penalty", -1.0, "from 0.01 to 100 (1 is off)"),
        ("repetition_penalty", 100.5, "from 0.01 to 100 (1 is off)"),
        ("presence_penalty", -2.1, "from -2 to 2 (0 is off)"),
        ("presence_penalty", 2.1, "from -2 to 2 (0 is off)"),
        ("frequency_penalty", -2.1, "from -2 to 2 (0 is off)"),
        ("frequency_penalty", 2.1, "from -2 to 2 (0 is off)"),
        ("top_k", -1, "0 or more"),
        ("min_new_tokens", -1, "0 or more"),
        ("seed", -(2**63) - 1, f"{-(2**63)} or more"),
        ("max_new_tokens", 0, "1 or more"),
        ("num_draft_tokens", -1, "0 or more"),
        ("verification", "blocks", "'block' or 'token'"),
    ],
)
def test_out_of_range(name: str, value: Any, allowed: str) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"{name} is {value!r}; it must be ")
    assert message.endswith(allowed)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_size(name: str, value: float) -> None:
    assert refusal(**{name: value}).startswith(f"{name} is {value}; it must be ")


@pytest.mark.parametrize("name", [*NUMBERS, "logit_bias"])
def test_integers_that_no_float_holds(name: str) -> None:
    assert refusal(**{name: {3: 10**400} if name == "logit_bias" else 10**400}).startswith(name)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["hot", None, [1.0], 1j])
def test_no_number(name: str, value: Any) -> None:
    assert refusal(**{name: value}) == f"{name} is {value!r}; it must be a number"


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1.5, "2", math.nan, [1]])
def test_no_whole_number(name: str, value: Any) -> None:
    assert refusal(**{name: value}) == f"{name} is {value!r}; it must be a whole number"


@pytest.mark.parametrize("name", ["top_k", "min_new_tokens", "max_new_tokens"])
def test_none_is_no_count(name: str) -> None:
    """It is a seed only: no seed."""
    assert refusal(**{name: None}) == f"{name} is None; it must be a whole number"
    assert SamplingParameters(seed=None).seed is None


@pytest.mark.parametrize("value", [None, 3, "blocks", ["block"]])
def test_no_verification(value: Any) -> None:
    assert refusal(verification=value) == f"verification is {value!r}; it must be 'block' or 'token'"


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ([(1, 2.0)], "logit_bias is [(1, 2.0)]; it must map token ids to numbers"),
        (None, "logit_bias is None; it must map token ids to numbers"),
        ({"a": 1.0}, "a token of logit_bias is 'a'; it must be a whole number"),
        ({1.5: 1.0}, "a token of logit_bias is 1.5; it must be a whole number"),
        ({1: "x"}, "logit_bias of token 1 is 'x'; it must be a number"),
        ({1: None}, "logit_bias of token 1 is None; it must be a number"),
        ({7: 100.5}, "logit_bias of token 7 is 100.5; it must be from -100 to 100"),
        ({7: -101}, "logit_bias of token 7 is -101; it must be from -100 to 100"),
        ({7: math.nan}, "logit_bias of token 7 is nan; it must be from -100 to 100"),
        ({1: 1.0, 7: -math.inf}, "logit_bias of token 7 is -inf; it must be from -100 to 100"),
    ],
)
def test_biases_that_are_none(bias: Any, message: str) -> None:
    assert refusal(logit_bias=bias) == message


@pytest.mark.parametrize(
    ("banned", "found"),
    [((1.5,), "1.5"), (["x"], "'x'"), ("12", "'1'"), ([None], "None"), ([[1]], r"[1]"), (np.array([0.5]), "0.5")],
)
def test_bans_that_are_none(banned: Any, found: str) -> None:
    message = refusal(banned_tokens=banned)
    assert message.startswith("a token of banned_tokens is ")
    assert message.endswith("it must be a whole number")
    assert found in message


@pytest.mark.parametrize("banned", [5, None, 1.5])
def test_bans_that_are_no_list(banned: Any) -> None:
    assert "banned_tokens" in refusal(banned_tokens=banned)


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
    for parameters, message in (
        (SamplingParameters(logit_bias={3: 1.0, 9: 1.0}), "logit_bias names token 9; ids go from 0 to 8"),
        (SamplingParameters(logit_bias={-1: 1.0}), "logit_bias names token -1; ids go from 0 to 8"),
        (SamplingParameters(banned_tokens=[0, 10**30]), f"banned_tokens names token {10**30}; ids go from 0 to 8"),
        (SamplingParameters(banned_tokens=[-9]), "banned_tokens names token -9; ids go from 0 to 8"),
    ):
        with pytest.raises(ParameterError) as caught:
            parameters.check_tokens(9, ())
        assert str(caught.value) == message
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
    with pytest.raises(
        ParameterError, match="banned_tokens and the stop tokens are all 5 tokens; at least one must be left"
    ):
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
        (None, ()),
        ((), ()),
        ("END", ("END",)),
        (["a", "b"], ("a", "b")),
        ((text for text in ("a", "b")), ("a", "b")),
        (dict.fromkeys(("a", "b")), ("a", "b")),
    ],
)
def test_stops_of_any_iterable(stop: Any, kept: tuple[str, ...]) -> None:
    assert SamplingParameters(stop=stop).stop == kept


@pytest.mark.parametrize("stop", [5, b"END", ["END", 5], [None]])
def test_stops_that_are_none(stop: Any) -> None:
    assert refusal(stop=stop).startswith("stop is ")


@pytest.mark.parametrize("stop", ["", ["x", ""]])
def test_an_empty_stop_is_refused(stop: Any) -> None:
    assert refusal(stop=stop).startswith("a stop string is empty")


def test_ids_of_any_iterable() -> None:
    parameters = SamplingParameters(banned_tokens=iter([1, 2]), stop_token_ids=(token for token in (3, 4)))
    assert (parameters.banned_tokens, parameters.stop_token_ids) == ((1, 2), (3, 4))
    assert SamplingParameters(stop_token_ids=np.int64(3)).stop_token_ids == (3,)  # type: ignore[arg-type]
    assert SamplingParameters(stop_token_ids=None).stop_token_ids is None


@pytest.mark.parametrize(("name", "value"), [("speculate", "no"), ("speculate", None), ("drafter", 5), ("route", 5)])
def test_names_and_switches(name: str, value: Any) -> None:
    assert refusal(**{name: value}).startswith(f"{name} is {value!r}; it must be ")


def test_the_minimum_length_is_no_more_than_the_maximum() -> None:
    assert refusal(min_new_tokens=5, max_new_tokens=4).startswith("min_new_tokens is 5; it must be at most")
    SamplingParameters(min_new_tokens=4, max_new_tokens=4)


def test_single_parameters_are_replaced_and_the_object_is_kept() -> None:
    params = SamplingParameters(temperature=0.5, stop="END", banned_tokens=[1])
    assert with_overrides(params, {}) is params
    other = with_overrides(params, {"temperature": 0.0, "top_k": 3})
    assert other == SamplingParameters(temperature=0.0, top_k=3, stop="END", banned_tokens=[1])
    assert params.temperature == 0.5
    assert with_overrides(None, {"seed": 1}) == SamplingParameters(seed=1)
    with pytest.raises(TypeError, match="temprature"):
        with_overrides(params, {"temprature": 1.0})
    with pytest.raises(ParameterError, match="params is"):
        with_overrides({"temperature": 1.0}, {})  # type: ignore[arg-type]


def test_what_was_given_may_change_afterwards() -> None:
    bias = {1: 1.0}
    parameters = SamplingParameters(logit_bias=bias)
    bias[1] = 1e9
    assert parameters.logit_bias == {1: 1.0}
