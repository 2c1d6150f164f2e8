"""What a request's rule makes of logits, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.runtime.proofs.enumeration import integrate
from specexport.runtime.proofs.tree_enumeration import FixedNoise, as_logits
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import (
    GreedyRule,
    NonFiniteLogitsError,
    Rule,
    SamplingRule,
    make_rule,
)
from specexport.runtime.sampling.truncation import processed_distribution

PARAMETERS = SamplingParameters(temperature=0.7, top_k=3, top_p=0.9, seed=1)
NAN, INF = float("nan"), float("inf")
# So cold a sampling rule takes the largest logit too, and both rules can be told the same.
COLD = 1e-6
TEMPERATURES = pytest.mark.parametrize("temperature", [0.0, COLD])


class Scripted:
    """A noise source that gives what it is told."""

    def __init__(self, *uniforms: float) -> None:
        self.uniforms = list(uniforms)

    def random(self, count: int | None = None) -> object:
        if count is None:
            return self.uniforms.pop(0)
        given, self.uniforms = self.uniforms[:count], self.uniforms[count:]
        return np.array(given)


def rule_for(vocab: int, prompt: Sequence[int] = (0,), stops: Sequence[int] = (), **parameters: Any) -> Rule:
    return make_rule(SamplingParameters(**parameters), vocab, prompt, stops)


def row(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


@pytest.mark.parametrize("draft_vocab", [3, 4, 6])
def test_the_rule_from_logits_to_tokens_keeps_the_targets_distribution(draft_vocab: int) -> None:
    """One draft token of a draft that knows fewer, as many, or more ids; every uniform integrated out."""
    rng = np.random.default_rng(draft_vocab)
    target_logits = rng.normal(size=(2, 4)).astype(np.float32)
    draft_logits = 2 * rng.normal(size=draft_vocab).astype(np.float32)
    draft_logits[-1] = 3.0  # the favourite of the larger draft is an id that the target lacks

    def play(uniforms: Sequence[float]) -> tuple[int, int, int]:
        rule = SamplingRule(PARAMETERS, 4, noise=(FixedNoise(uniforms[:1]), FixedNoise(uniforms[1:])))
        drafted = rule.propose(draft_logits)
        assert drafted is not None
        return drafted, *rule.accept(target_logits, [drafted])

    proposed, first, bonus = np.zeros(4), np.zeros(4), np.zeros(4)
    for (drafted, count, token), probability in integrate(play, 3):
        proposed[drafted] += probability
        first[drafted if count else token] += probability
        bonus[token] += probability * count
    rows = [processed_distribution(row, PARAMETERS) for row in (draft_logits[:4], *target_logits)]
    expected = [[row.of(token) for token in range(4)] for row in rows]
    assert proposed == pytest.approx(expected[0], abs=1e-15)  # it must follow what it is judged by
    assert first == pytest.approx(expected[1], abs=1e-12)
    if bonus.any():  # the draft's token may never be one of the target's
        assert bonus / bonus.sum() == pytest.approx(expected[2], abs=1e-12)


def test_noise_of_drafting_and_of_acceptance_is_independent() -> None:
    rule = SamplingRule(PARAMETERS, vocab_size=4)
    draft, target = rule._draft_noise.random(4000), rule._target_noise.random(4000)
    assert abs(np.corrcoef(draft, target)[0, 1]) < 0.08  # five standard deviations
    assert not set(draft) & set(target)


def test_each_side_draws_from_its_own_noise() -> None:
    rule = SamplingRule(SamplingParameters(temperature=1.0, seed=3), vocab_size=4)
    rule._draft_noise, rule._target_noise = Scripted(0.9, 0.9), Scripted(0.0, 0.0, 0.1, 0.9, 0.1)  # type: ignore[assignment]
    logits = np.zeros((3, 4), np.float32)
    assert [rule.propose(logits[0]) for _ in range(2)] == [3, 3]
    assert rule.accept(logits, [3, 3]) == (2, 0)
    rule.record_deterministic(1)
    assert rule.accept(logits[:2], [1]) == (0, 0)


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    rule = GreedyRule(4)
    tie = row(0.0, 2.0, 2.0, 1.0)
    assert rule.propose(tie) == 1
    assert rule.accept(tie[None], []) == (0, 1)
    assert rule.accept(np.stack([tie, tie]), [1]) == (1, 1)
    assert rule.accept(np.stack([tie, tie]), [2]) == (0, 1)


@TEMPERATURES
def test_the_first_difference_ends_the_draft(temperature: float) -> None:
    rows = np.eye(4, dtype=np.float32)
    for drafted, outcome in (([0, 1, 2], (3, 3)), ([0, 3, 2], (1, 1)), ([1, 1, 2], (0, 0)), ([], (0, 0))):
        for looked_up in (False, True):
            rule = rule_for(4, temperature=temperature, seed=0)
            for token in drafted:
                if looked_up:
                    rule.record_deterministic(token)
                else:
                    assert rule.propose(np.eye(4, dtype=np.float32)[token]) == token
            assert rule.accept(rows, drafted) == outcome


@TEMPERATURES
def test_no_rule_proposes_an_id_that_the_target_lacks(temperature: float) -> None:
    for vocab, token in ((2, 1), (3, 2), (4, 2)):
        assert rule_for(vocab, temperature=temperature).propose(row(0.0, 30.0, 90.0)) == token


LADDER = row(5.5, 4.2, 3.1, 2.0)
PENALTIES = {"presence_penalty": 2.0, "frequency_penalty": 2.0}  # once: 4 less, twice: 6 less


@TEMPERATURES
def test_every_row_is_judged_by_the_tokens_in_front_of_it(temperature: float) -> None:
    rule = rule_for(4, temperature=temperature, seed=0, **PENALTIES)
    assert [rule.propose(LADDER) for _ in range(3)] == [0, 1, 2]
    assert rule.accept(np.stack([LADDER] * 4), [0, 1, 2]) == (3, 3)
    # All four are output now: 1.5, 0.2, -0.9, -2 is left; behind another 0 it is -0.5, 0.2, -0.9, -2.
    assert [rule.propose(LADDER) for _ in range(2)] == [0, 1]
    assert rule.accept(np.stack([LADDER] * 3), [0, 1]) == (2, 0)


@TEMPERATURES
def test_rejected_tokens_are_no_output(temperature: float) -> None:
    rule = rule_for(4, temperature=temperature, seed=0, **PENALTIES)
    for token in (0, 3, 2):
        rule.record_deterministic(token)
    assert rule.accept(np.stack([LADDER] * 4), [0, 3, 2]) == (1, 1)
    # 0 and 1 are output; 2 and 3, which were rejected, are not.
    assert [rule.propose(LADDER) for _ in range(2)] == [2, 3]
    assert rule.accept(np.stack([LADDER] * 3), [2, 3]) == (2, 0)


@TEMPERATURES
def test_the_minimum_length_counts_drafted_tokens(temperature: float) -> None:
    rule = rule_for(3, stops=[0], temperature=temperature, seed=0, min_new_tokens=2)
    logits = row(9.0, 2.0, 1.0)
    assert [rule.propose(logits) for _ in range(3)] == [1, 1, 0]
    assert rule.accept(np.stack([logits] * 4), [1, 1, 0]) == (3, 0)
    assert rule.propose(logits) == 0


@TEMPERATURES
def test_a_draft_of_fewer_ids_is_adjusted_too(temperature: float) -> None:
    rule = rule_for(
        9,
        prompt=[8, 0],
        stops=[7],
        temperature=temperature,
        repetition_penalty=3.0,
        logit_bias={8: 1.0},
        min_new_tokens=1,
    )
    assert rule.propose(LADDER) == 1


def test_looked_up_tokens_stand_with_the_targets_probability() -> None:
    logits = np.log(row(0.2, 0.5, 0.3))
    for uniform, outcome in ((0.0, (1, 0)), (0.499, (1, 0)), (0.501, (0, 0)), (0.999, (0, 0))):
        for verification in ("block", "token"):
            rule = rule_for(3, temperature=1.0, verification=verification)
            rule._target_noise = Scripted(uniform, 0.1)  # type: ignore[attr-defined]
            rule.record_deterministic(1)
            assert rule.accept(np.stack([logits, logits]), [1]) == outcome


@pytest.mark.parametrize("verification", ["block", "token"])
def test_rows_behind_a_rejected_token_without_chance_are_never_looked_at(verification: Any) -> None:
    rows = np.stack([row(0.0, 1.0), row(NAN, NAN), row(NAN, NAN)])
    for options in (
        {"temperature": 0.0},
        {"temperature": COLD},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 1},
    ):
        rule = rule_for(2, verification=verification, **options)
        rule._target_noise = Scripted(0.5, 0.5, 0.5)  # type: ignore[attr-defined]
        for _ in range(2):
            if "top_k" in options:
                assert rule.propose(row(9.0, 0.0)) == 0  # one token is left, so there is no chance in it
            else:
                rule.record_deterministic(0)
        assert rule.accept(rows, [0, 0]) == (0, 1)


@pytest.mark.parametrize("verification", ["block", "token"])
def test_a_broken_row_ends_a_request_as_often_as_the_target_comes_to_it(verification: Any) -> None:
    """The target gives no numbers after token 0, which the draft likes more than the target does."""
    target, draft = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
    fine, parameters = as_logits(target), SamplingParameters(temperature=1.0, verification=verification)

    def play(uniforms: Sequence[float]) -> tuple[int, int, int | None]:
        rule = SamplingRule(
            parameters, 3, noise=(FixedNoise([uniforms[0], 0.5]), FixedNoise([uniforms[1], 0.9, uniforms[2]]))
        )
        tokens = [rule.propose(as_logits(draft)) or 0 for _ in range(2)]
        rows = [fine, row(NAN, NAN, NAN) if tokens[0] == 0 else fine, fine]
        try:
            count, following = rule.accept(np.stack(rows), tokens)
        except NonFiniteLogitsError:
            return tokens[0], 0, None
        return tokens[0], count, tokens[0] if count else following

    failed, first = 0.0, np.zeros(3)
    for (_, _, token), probability in integrate(play, 3):
        if token is None:
            failed += probability
        else:
            first[token] += probability
    assert failed == pytest.approx(0.2, abs=1e-6)
    assert first == pytest.approx([0.0, 0.5, 0.3], abs=1e-6)


BROKEN = [
    (row(1.0, NAN, 2.0), "nan"),
    (row(1.0, INF, 2.0), "inf"),
    (row(-INF, -INF, -INF), "-inf"),
    (row(-INF, NAN, INF), "nan"),
]


@pytest.mark.parametrize(("broken", "value"), BROKEN)
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"logit_bias": {0: 1.0}}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_named(
    broken: np.ndarray, value: str, options: dict[str, Any], temperature: float
) -> None:
    fine = row(-INF, 0.0, 50.0)  # a token that is impossible is none of those
    for place in range(3):
        rule = rule_for(3, temperature=temperature, seed=0, **options)
        assert [rule.propose(fine) for _ in range(place)] == [2] * place
        with pytest.raises(NonFiniteLogitsError, match=f"draft logits hold {value}") as caught:
            rule.propose(broken)
        assert (caught.value.role, caught.value.index, str(caught.value.value)) == ("draft", place, value)

        rule = rule_for(3, temperature=temperature, seed=0, **options)
        rows = [fine] * 4
        rows[place] = broken
        for _ in range(3):
            rule.record_deterministic(2)
        with pytest.raises(NonFiniteLogitsError, match=f"target logits hold {value}") as caught:
            rule.accept(np.stack(rows), [2, 2, 2])
        assert (caught.value.role, caught.value.index, str(caught.value.value)) == ("target", place, value)


@TEMPERATURES
def test_a_draft_of_which_nothing_is_left_proposes_nothing(temperature: float) -> None:
    """The target has ids left over, so there is something to emit."""
    rule = rule_for(4, temperature=temperature, seed=0, banned_tokens=[0, 1])
    for _ in range(2):
        assert rule.propose(row(1.0, 2.0)) is None
        assert rule.accept(LADDER[None], []) == (0, 2)
    assert rule.propose(row(1.0, 2.0, 3.0)) == 2
    assert rule.propose(row(1.0, 2.0)) is None
    assert rule.accept(np.stack([LADDER] * 2), [2]) == (1, 2)


@TEMPERATURES
def test_the_models_own_exclusions_are_its_fault_and_the_requests_are_not(temperature: float) -> None:
    rule = rule_for(3, temperature=temperature, banned_tokens=[1])
    assert rule.propose(row(-INF, 1.0, -INF)) is None
    for broken in (row(-INF, -INF, -INF), row(NAN, 1.0, -INF)):
        with pytest.raises(NonFiniteLogitsError):
            rule.propose(broken)
    with pytest.raises(ParameterError, match="forbid every token that the target can produce here"):
        rule.accept(row(-INF, 1.0, -INF)[None], [])
    with pytest.raises(NonFiniteLogitsError):
        rule.accept(row(-INF, -INF, -INF)[None], [])


@pytest.mark.parametrize("stops", [[0, 1], [0]])
@TEMPERATURES
def test_a_draft_may_run_out_of_tokens_within_a_round(temperature: float, stops: list[int]) -> None:
    """Its ids are the stop tokens and a ban: below the minimum length nothing is left, and behind it there is."""
    rule = rule_for(
        4, stops=stops, temperature=temperature, seed=0, min_new_tokens=1, banned_tokens={0, 1} - set(stops)
    )
    assert rule.propose(row(1.0, 2.0)) is None
    assert rule.accept(LADDER[None], []) == (0, 2)
    assert rule.propose(row(2.0, 1.0)) == 0
