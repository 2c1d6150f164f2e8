"""The arithmetic of a distribution over few tokens or over all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from specexport.runtime.sampling.distribution import BLOCK, Distribution

ALMOST_ONE = math.nextafter(1.0, 0.0)


def few(**probs: float) -> Distribution:
    """`few(t3=0.5, t9=0.5)`: token 3 and token 9."""
    tokens = np.array([int(name[1:]) for name in probs], np.int64)
    return Distribution(np.array(list(probs.values())), tokens)


def sparse(probs: np.ndarray) -> Distribution:
    """Only what is not zero, and one token more, whose probability is zero."""
    kept = probs > 0
    kept[np.flatnonzero(~kept)[:1]] = True
    return Distribution(probs[kept], np.flatnonzero(kept))


def whole(distribution: Distribution, vocab: int) -> np.ndarray:
    found = np.zeros(vocab)
    found[slice(len(distribution.probs)) if distribution.tokens is None else distribution.tokens] = distribution.probs
    return found


def test_a_certain_token() -> None:
    certain = Distribution.point_mass(7)
    assert [certain.of(token) for token in (0, 6, 7, 8)] == [0.0, 0.0, 1.0, 0.0]
    assert certain.mass == 1.0
    assert certain.draw(0.0) == certain.draw(ALMOST_ONE) == 7


def random_probs(rng: np.random.Generator, vocab: int) -> np.ndarray:
    probs = rng.random(vocab) * (rng.random(vocab) < 0.5)
    probs[rng.integers(vocab)] = 1.0
    return probs / probs.sum()


@pytest.mark.parametrize("ours_sparse", [False, True])
@pytest.mark.parametrize("theirs_sparse", [False, True])
@pytest.mark.parametrize(("vocab", "other_vocab"), [(6, 6), (6, 4), (4, 6), (1, 1), (40, 40)])
def test_the_excess_by_its_formula(ours_sparse: bool, theirs_sparse: bool, vocab: int, other_vocab: int) -> None:
    rng = np.random.default_rng([vocab, other_vocab])
    for scale in (1.0, 0.3, 0.0):
        for _ in range(20):
            ours, theirs = random_probs(rng, vocab), random_probs(rng, min(vocab, other_vocab))
            padded = np.append(theirs, np.zeros(vocab - len(theirs)))
            # what the target lacks is never proposed, but may stand there
            if not theirs_sparse and other_vocab > vocab:
                theirs = np.append(theirs, np.full(other_vocab - vocab, 0.0))
            one, other = (
                sparse(ours) if ours_sparse else Distribution(ours),
                sparse(theirs) if theirs_sparse else Distribution(theirs),
            )
            before = one.probs.copy(), other.probs.copy()
            left = one.excess(scale, other)
            assert whole(left, vocab).tolist() == np.maximum(scale * ours - padded, 0.0).tolist()
            assert left.mass == pytest.approx(np.maximum(scale * ours - padded, 0.0).sum(), abs=1e-15)
            assert np.array_equal(before[0], one.probs)
            assert np.array_equal(before[1], other.probs)


def test_the_excess_over_what_shares_nothing_is_all() -> None:
    for other in (
        few(t0=0.5, t3=0.5),
        few(t10=1.0),
        few(t5=1.0),
        Distribution(np.array([1.0, 0.0])),
        Distribution.point_mass(100),
    ):
        assert few(t2=0.25, t9=0.75).excess(1.0, other).probs.tolist() == [0.25, 0.75]
        assert few(t2=0.25, t9=0.75).excess(0.5, other).probs.tolist() == [0.125, 0.375]
    assert Distribution(np.array([0.5, 0.5])).excess(1.0, Distribution.point_mass(1)).probs.tolist() == [0.5, 0.0]


def test_draw_takes_the_interval_of_the_cumulative_distribution() -> None:
    places = ((0.0, 0), (0.2499, 0), (0.25, 1), (0.7499, 1), (0.75, 2), (0.9999, 2))
    for distribution, tokens in (
        (Distribution(np.array([0.25, 0.5, 0.25])), [0, 1, 2]),
        (few(t4=0.25, t5=0.5, t90=0.25), [4, 5, 90]),
    ):
        assert [distribution.draw(uniform) for uniform, _ in places] == [tokens[place] for _, place in places]


@pytest.mark.parametrize("size", [BLOCK, BLOCK + 1, 5 * BLOCK - 3, 50_000])
def test_draw_of_many_tokens_takes_the_same_intervals(size: int) -> None:
    """Of masses that add up without rounding: some 0, also those of whole blocks."""
    masses = np.random.default_rng(size).integers(0, 3, size) * 2.0**-20
    masses[BLOCK : 3 * BLOCK] = masses[-1] = 0.0
    cumulative, distribution = masses.cumsum(), Distribution(masses)
    uniforms = np.random.default_rng(1).random(300)
    wanted = cumulative.searchsorted(uniforms * cumulative[-1], side="right")
    assert [distribution.draw(uniform) for uniform in uniforms] == wanted.tolist()
    assert distribution.draw(0.0) == masses.nonzero()[0][0]
    assert distribution.draw(ALMOST_ONE) == masses.nonzero()[0][-1]


def test_draw_survives_sums_of_a_block_that_round_apart() -> None:
    rng, apart = np.random.default_rng(0), 0
    for _ in range(200):
        masses = rng.random(3 * BLOCK) ** 8
        masses[rng.random(len(masses)) < 0.5] = 0.0
        blocks = masses.reshape(3, BLOCK)
        apart += int((blocks.sum(axis=1) > blocks.cumsum(axis=1)[:, -1]).sum())
        for block, end in enumerate(blocks.sum(axis=1).cumsum() / blocks.sum(axis=1).cumsum()[-1]):
            token = Distribution(masses).draw(float(end) * (1 - 4e-16))
            assert token // BLOCK == block
            assert masses[token] > 0
    assert apart > 0


@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
def test_draw_never_gives_a_token_without_mass(uniform: float) -> None:
    assert Distribution(np.array([0.0, 0.0, 1e-300, 0.0])).draw(uniform) == 2
    assert few(t1=0.0, t5=1e-300, t9=0.0).draw(uniform) == 5
    assert Distribution(np.array([0.0, 0.1, 0.2, 0.7, 0.0]) * (1 / 3)).draw(uniform) in (1, 3)


def test_draw_survives_a_product_that_rounds_onto_the_total() -> None:
    assert Distribution(np.array([5e-324, 0.0])).draw(ALMOST_ONE) == 0
    assert few(t3=5e-324, t8=0.0).draw(ALMOST_ONE) == 3
