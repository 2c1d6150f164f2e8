"""The verification rules that a round runs on the device, and what each takes and gives.

vocab is the vocabulary's size, k the number of draft tokens, R = k + 1 the target's rows.

select_greedy   logits `[1, vocab]` -> token `[1] int64`, the lowest id of the largest logit; confidence `[1]`
select          logits `[1, vocab]`, noise `[1]`, sampling `[4]` -> token `[1] int64`, drawn; draft_probs `[1, vocab]`,
                what it was drawn from; confidence `[1]`
accept_greedy   logits `[R, vocab]`, draft_tokens `[k] int64`, position `[1] int64` -> num_accepted, next_token,
                next_position, each `[1] int64`: a draft token stands while it is the argmax
accept_token,   these and draft_probs `[k, vocab]`, what the draft tokens were drawn from, noise `[R]`, sampling `[4]`
accept_block    -> the same: as `runtime/sampling/acceptance.py`

float32 but for ids. confidence: the largest probability of the softmax at temperature 1, whatever was drawn; NaN where
a logit is NaN or +inf or none is finite, which is what the host looks for.
sampling: temperature above 0, top_k (0 is off), top_p (1 is off), min_p (0 is off); see
`runtime/sampling/truncation.py`.
noise: uniforms in [0, 1), one a draft token, the last for the token that follows. position: the cache row of the last
known token; next_position: that of next_token. Where a row that was needed is no numbers, num_accepted is its index and
next_token is vocab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

RuleName = Literal["select", "select_greedy", "accept_greedy", "accept_token", "accept_block"]


@dataclass(frozen=True)
class RuleSpec:
    """num_draft_tokens: k, 0 for rules that read one row."""

    rule: RuleName
    num_draft_tokens: int = 0

    @property
    def rows(self) -> int:
        """Of logits."""
        return self.num_draft_tokens + 1

    @property
    def name(self) -> str:
        """As `select`, `accept_block_4`."""
        return f"{self.rule}_{self.num_draft_tokens}" if self.num_draft_tokens else self.rule

    @property
    def draws(self) -> bool:
        return not self.rule.endswith("greedy")


def rule_specs(max_draft_tokens: int) -> Iterator[RuleSpec]:
    """All rules of rounds of up to that many draft tokens."""
    yield RuleSpec("select")
    yield RuleSpec("select_greedy")
    for k in range(1, max_draft_tokens + 1):
        yield RuleSpec("accept_greedy", k)
        yield RuleSpec("accept_token", k)
        yield RuleSpec("accept_block", k)
