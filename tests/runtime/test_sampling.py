from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from specexport.errors import ParameterError
from specexport.runtime.sampling import SamplingParameters, draw, processed_probabilities
from transformers.generation.logits_process import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

LOGITS = np.random.default_rng(0).normal(scale=2.0, size=(5, 40)).astype(np.float32)


def by_transformers(logits: np.ndarray, parameters: SamplingParameters) -> np.ndarray:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(parameters.temperature)])
    if parameters.top_k:
        warpers.append(TopKLogitsWarper(parameters.top_k))
    if parameters.top_p < 1:
        warpers.append(TopPLogitsWarper(parameters.top_p))
    scores = warpers(torch.zeros((len(logits), 0), dtype=torch.long), torch.from_numpy(logits).double())
    return scores.softmax(-1).numpy()


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, 40, 1000])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.95, 1.0])
def test_same_distribution_as_transformers(temperature: float, top_k: int, top_p: float) -> None:
    parameters = SamplingParameters(temperature, top_k, top_p)
    found = processed_probabilities(LOGITS, parameters)
    assert found.dtype == np.float64
    assert found == pytest.approx(by_transformers(LOGITS, parameters), abs=1e-12)
    assert found.sum(axis=-1) == pytest.approx(1.0, abs=1e-12)


def test_top_k_keeps_every_tie_as_transformers_does() -> None:
    tie = np.array([[0.0, 1.0, 1.0, 1.0, -1.0]], np.float32)
    parameters = SamplingParameters(1.0, top_k=2)
    found = processed_probabilities(tie, parameters)
    assert np.flatnonzero(found[0]).tolist() == [1, 2, 3]
    assert found == pytest.approx(by_transformers(tie, parameters))


def test_top_p_keeps_the_token_that_reaches_it_and_drops_the_next() -> None:
    logits = np.log([[0.5, 0.25, 0.125, 0.125]]).astype(np.float32)
    for top_p, kept in ((0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3)):
        found = processed_probabilities(logits, SamplingParameters(1.0, top_p=top_p))
        assert np.count_nonzero(found) == kept


def test_rows_do_not_touch_each_other() -> None:
    parameters = SamplingParameters(0.8, 5, 0.9)
    for row, together in zip(LOGITS, processed_probabilities(LOGITS, parameters), strict=True):
        assert (processed_probabilities(row[None], parameters)[0] == together).all()


def test_logits_are_left_as_they_were() -> None:
    before = LOGITS.copy()
    processed_probabilities(LOGITS, SamplingParameters(0.8, 5, 0.9))
    assert (before == LOGITS).all()


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-6])
def test_a_temperature_next_to_zero_leaves_the_largest(temperature: float) -> None:
    found = processed_probabilities(np.array([[1.0, 3.0, 2.0, 3.0]], np.float32), SamplingParameters(temperature))
    assert found.tolist() == [[0.0, 0.5, 0.0, 0.5]]


def test_large_and_excluded_logits() -> None:
    found = processed_probabilities(np.array([[3e38, -3e38, -np.inf]], np.float32), SamplingParameters(1.0, 2, 0.9))
    assert found.tolist() == [[1.0, 0.0, 0.0]]


def test_draw_takes_the_interval_of_the_cumulative_distribution() -> None:
    probabilities = np.array([0.25, 0.5, 0.25])
    places = ((0.0, 0), (0.2499, 0), (0.25, 1), (0.7499, 1), (0.75, 2), (0.9999, 2))
    assert [draw(probabilities, uniform) for uniform, _ in places] == [token for _, token in places]


def test_draw_needs_no_normalisation() -> None:
    assert [draw(np.array([0.1, 0.0, 0.1]), uniform) for uniform in (0.0, 0.49, 0.51, 0.99)] == [0, 0, 2, 2]


@pytest.mark.parametrize("uniform", [0.0, 0.5, math.nextafter(1.0, 0.0)])
def test_draw_never_gives_a_token_without_mass(uniform: float) -> None:
    assert draw(np.array([0.0, 0.0, 1e-300, 0.0]), uniform) == 2
    assert draw(np.array([0.0, 0.1, 0.2, 0.7, 0.0]) * (1 / 3), uniform) in (1, 3)


def test_draw_survives_a_product_that_rounds_onto_the_total() -> None:
    tiny = np.array([5e-324, 0.0])
    assert draw(tiny, math.nextafter(1.0, 0.0)) == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be from 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": 101.0}, "temperature is 101"),
        ({"top_k": -1}, "top_k is -1; it must be 0"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
    ],
)
def test_refused_parameters_are_named(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        SamplingParameters(**parameters)  # type: ignore[arg-type]


def test_defaults_are_greedy() -> None:
    assert SamplingParameters().greedy
    assert not SamplingParameters(temperature=1e-9).greedy
