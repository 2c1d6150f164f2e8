"""What a request's rule makes of logits, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.runtime.proofs.enumeration import integrate
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


def shares(token: Callable[[float], int], vocab: int) -> list[float]:
    """The fraction of uniforms for which `token` is each of the ids."""
    found = [0.0] * vocab
    for drawn, probability in integrate(lambda uniforms: token(uniforms[0]), 1):
        found[drawn] += probability
    return found


def measure(holds: Callable[[float], bool]) -> float:
    return sum(p for held, p in integrate(lambda uniforms: holds(uniforms[0]), 1) if held)


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
    target_probs = [dict(processed_distribution(logits, PARAMETERS).items()) for logits in target_logits]

    def propose(uniform: float) -> tuple[SamplingRule, int]:
        rule = SamplingRule(PARAMETERS, vocab_size=4)
        rule._draft_noise = Scripted(uniform)  # type: ignore[assignment]
        return rule, rule.propose(draft_logits)

    proposed = shares(lambda uniform: propose(uniform)[1], 4)
    assert sum(proposed) == pytest.approx(1, abs=1e-15)
    # What is proposed must follow what it is judged by.
    judged = dict(processed_distribution(draft_logits[:4], PARAMETERS).items())
    assert proposed == pytest.approx([judged.get(token, 0.0) for token in range(4)], abs=1e-15)

    first = np.zeros(4)
    for token, drafted in enumerate(proposed):
        if not drafted:
            continue

        def accept(*uniforms: float, token: int = token) -> tuple[int, int]:
            rule, proposed_token = propose(sum(proposed[:token]) + proposed[token] / 2)
            assert proposed_token == token
            rule._target_noise = Scripted(*uniforms)  # type: ignore[assignment]
            return rule.accept(target_logits, [token])

        accepted = measure(lambda uniform, accept=accept: accept(uniform, 0.5)[0] == 1)
        first[token] += drafted * accepted
        if accepted:
            bonus = shares(lambda uniform, accept=accept, half=accepted / 2: accept(half, uniform)[1], 4)
            assert bonus == pytest.approx([target_probs[1].get(other, 0.0) for other in range(4)], abs=1e-15)
        if accepted < 1:
            first += (drafted * (1 - accepted)) * np.array(
                shares(lambda uniform, accept=accept, half=(1 + accepted) / 2: accept(half, uniform)[1], 4)
            )
    assert first == pytest.approx([target_probs[0].get(token, 0.0) for token in range(4)], abs=1e-12)


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
    rule.certain(1)
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
                    rule.certain(token)
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
        rule.certain(token)
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
            rule.certain(1)
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
                rule.certain(0)
        assert rule.accept(rows, [0, 0]) == (0, 1)


@pytest.mark.parametrize("verification", ["block", "token"])
def test_a_broken_row_ends_a_request_as_often_as_the_target_comes_to_it(verification: Any) -> None:
    """The target gives no numbers after token 0, which the draft likes more than the target does."""
    target, draft = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
    fine = np.log(target).astype(np.float32)
    failed, first = 0.0, np.zeros(3)
    for token, drafted in enumerate(draft):

        def accept(*uniforms: float, token: int = token) -> int | None:
            rule = rule_for(3, temperature=1.0, verification=verification)
            rule._draft_noise = Scripted(draft[:token].sum() + 0.05, 0.5)  # type: ignore[attr-defined]
            rule._target_noise = Scripted(uniforms[0], 0.9, uniforms[1])  # type: ignore[attr-defined]
            tokens = [rule.propose(np.log(draft).astype(np.float32)) for _ in range(2)]
            assert tokens[0] == token
            rows = [fine, row(NAN, NAN, NAN) if token == 0 else fine, fine]
            try:
                count, following = rule.accept(np.stack(rows), tokens)  # type: ignore[arg-type]
            except NonFiniteLogitsError:
                return None
            return tokens[0] if count else following

        fails = measure(lambda uniform, accept=accept: accept(uniform, 0.5) is None)
        failed += drafted * fails
        if token:
            stays = measure(lambda uniform, accept=accept, token=token: accept(uniform, 0.5) == token)
            first[token] += drafted * stays
            rest, half = 1.0 - stays, (1.0 + stays) / 2
        else:
            rest, half = 1.0 - fails, (1.0 + fails) / 2
        if rest > 1e-9:
            found = shares(lambda uniform, accept=accept, half=half: accept(half, uniform), 3)
            first += drafted * rest * np.array(found)
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
            rule.certain(2)
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
