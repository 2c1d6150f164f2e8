"""From a row of logits to the distribution that a token is drawn from: temperature, top-k, top-p, min-p."""

from __future__ import annotations

import math

import numpy as np

from .distribution import Distribution, Probabilities, Row, Tokens
from .parameters import SamplingParameters

# How many of the most probable tokens top-p looks at first; few nuclei are larger.
NUCLEUS = 256


def processed_distribution(logits: Row, parameters: SamplingParameters, top: float | None = None) -> Distribution:
    """Temperature, then top-k, top-p and min-p, as transformers orders them. logits `[vocab]`: -inf means never.

    top: the largest logit, if it is known. Each of the three keeps all logits from some value on, so ties with the last
    one kept are kept as well: top-k from the k-th largest, top-p from the last that the mass needs to reach top_p,
    min-p from min_p times the largest probability. Probabilities are float64; only the whole vocabulary's mass, for a
    top-p without top-k, is summed in float32 (1e-7 of it off).
    """
    temperature = parameters.temperature
    top = float(logits.max()) if top is None else top
    top_k = parameters.top_k if parameters.top_k < len(logits) else 0
    if not top_k and parameters.top_p >= 1.0 and not parameters.min_p:
        return Distribution(_normalised(_weights(logits, top, temperature)))

    floor = top + temperature * math.log(parameters.min_p) if parameters.min_p else -math.inf
    if top_k:
        tokens = largest(logits, top_k)
        values = logits[tokens]
        kept = values >= np.partition(values, -top_k)[-top_k]
        if parameters.top_p < 1.0:
            goal = parameters.top_p * float(_weights(values[kept], top, temperature).sum())
            kept &= values >= _nucleus(values[kept], top, temperature, goal)
    elif parameters.top_p < 1.0:
        goal = parameters.top_p * _mass(logits, top, temperature)
        count, cut = NUCLEUS, -math.inf
        while True:
            tokens = largest(logits, count)
            values = logits[tokens]
            cut = _nucleus(values, top, temperature, goal)
            if cut > -math.inf or len(tokens) == len(logits):
                break
            count *= 8
        kept = values >= cut
    else:
        tokens = np.flatnonzero(logits >= floor)
        values = logits[tokens]
        kept = values >= floor
    kept &= values >= floor
    return Distribution(_normalised(_weights(values[kept], top, temperature)), tokens[kept])


def _nucleus(logits: Row, top: float, temperature: float, goal: float) -> float:
    """The largest value from which on the weights reach `goal`; -inf if all together do not."""
    ranked = -np.sort(-logits)
    place = int(_weights(ranked, top, temperature).cumsum().searchsorted(goal))
    return float(ranked[place]) if place < len(ranked) else -math.inf


def largest(logits: Row, count: int) -> Tokens:
    """Ascending tokens `[>= count]`: all with a logit from some value on, and not many more if `count` is small.

    The largest logits of `columns` groups are `columns` different logits, so their count-th largest is not above
    the count-th largest of all.
    """
    columns = max(2048, 2 * count)
    rows = len(logits) // columns
    if rows < 2:
        return np.arange(len(logits))
    grid, rest = logits[: rows * columns].reshape(rows, columns), logits[rows * columns :]
    largest = grid.max(axis=0)
    bound = np.partition(largest, -count)[-count]
    groups = np.flatnonzero(largest >= bound)
    if 8 * len(groups) > columns:
        return np.flatnonzero(logits >= bound)
    places, members = np.nonzero(grid[:, groups] >= bound)
    return np.concatenate([places * columns + groups[members], rows * columns + np.flatnonzero(rest >= bound)])


def _weights(logits: Row, top: float, temperature: float) -> Probabilities:
    """exp((logit - top) / temperature), at most 1, float64."""
    weights = logits.astype(np.float64)
    weights -= top
    with np.errstate(over="ignore"):  # a temperature close to 0 leaves only the largest logits
        weights /= temperature
    return np.exp(weights, out=weights)


def _mass(logits: Row, top: float, temperature: float) -> float:
    """The sum of all weights, quickly."""
    with np.errstate(over="ignore"):
        scaled = logits - np.float32(top)
        scaled /= np.float32(max(temperature, 1e-30))
    return float(np.exp(scaled, out=scaled).sum())


def _normalised(weights: Probabilities) -> Probabilities:
    weights /= weights.sum()
    return weights
