"""Which draft tokens are accepted, and which token follows them: the rules that keep the output the target's own.

Both sampling rules need the processed distributions that the tokens really were drawn from. Uniforms lie in [0, 1), so
`<` accepts with exactly the probability on its right, and never a token of probability 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .distribution import Distribution, Probabilities
from .parameters import Verification

# (target, draft_probs, draft_tokens, uniforms) -> (num_accepted, next_token)
Verify = Callable[
    [Callable[[int], Distribution], Sequence[Distribution], Sequence[int], Probabilities], tuple[int, int]
]


def verify_tokens(
    target: Callable[[int], Distribution],
    draft_probs: Sequence[Distribution],
    draft_tokens: Sequence[int],
    uniforms: Probabilities,
) -> tuple[int, int]:
    """Token verification (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Chen et al. 2023, arXiv 2302.01318).

    target(i): the target's distribution after draft_tokens[:i], i from 0 to k, evaluated only as far as needed.
    draft_probs[i]: what draft_tokens[i] was drawn from. uniforms `[k + 1]`, the last one for the token that follows.
    Returns `(num_accepted, next_token)`.
    """
    for index, (draft_token, draft) in enumerate(zip(draft_tokens, draft_probs, strict=True)):
        probs = target(index)
        if not uniforms[index] * draft.of(draft_token) < probs.of(draft_token):
            return index, _follow(probs, 1.0, draft, uniforms[-1])
    return len(draft_tokens), target(len(draft_tokens)).draw(uniforms[-1])


def verify_block(
    target: Callable[[int], Distribution],
    draft_probs: Sequence[Distribution],
    draft_tokens: Sequence[int],
    uniforms: Probabilities,
) -> tuple[int, int]:
    """Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): the longest draft that is accepted as a
    whole.

    Arguments as in `verify_tokens`. In expectation never fewer tokens than token verification; the same for k = 1.
    """
    num_draft_tokens = len(draft_tokens)
    accepted, accepted_ratio = 0, 1.0
    ratio = 1.0  # P_i, the ratio of the target's and the draft's probability of the first i tokens, capped at 1
    for index, (draft_token, draft) in enumerate(zip(draft_tokens, draft_probs, strict=True), start=1):
        ratio = min(1.0, ratio * target(index - 1).of(draft_token) / draft.of(draft_token))
        if ratio == 0.0:
            break  # no longer one is accepted either
        accept_prob = ratio
        if index < num_draft_tokens:
            left = target(index).excess(ratio, draft_probs[index]).mass
            whole = left + (1.0 - ratio)
            accept_prob = left / whole if whole else 1.0
        if uniforms[index - 1] < accept_prob:
            accepted, accepted_ratio = index, ratio
    if accepted == num_draft_tokens:
        return accepted, target(accepted).draw(uniforms[-1])
    return accepted, _follow(target(accepted), accepted_ratio, draft_probs[accepted], uniforms[-1])


def _follow(target: Distribution, scale: float, draft: Distribution, uniform: float) -> int:
    """Draw from the residual; where that rounds to zero, both distributions are the same."""
    left = target.excess(scale, draft)
    return (left if left.mass > 0.0 else target).draw(uniform)


VERIFY: dict[Verification, Verify] = {"block": verify_block, "token": verify_tokens}
