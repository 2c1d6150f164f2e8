"""What a request did, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Statistics:
    """Counts and times of one request; times in seconds.

    emitted: tokens given to the caller; a stop cuts the last round. reused_tokens: tokens of the prompt found in the
    cache; restored_tokens: those of them that came from the host (`prompt_cache_bytes`).

    drafted_by_position[i]: rounds in which draft token i (from 0) was drafted; accepted_by_position[i]: those in which
    it was accepted. looked_up: draft tokens found in a text; predicted: those of them from the request's prediction;
    predicted_accepted: those of these that were accepted. forced: draft tokens that the grammar forced.

    candidates: those of `spectr` that had a row in a verify pass. caught: those that were accepted, each of which gave
    one more token. fed_again: rows of these, with which the next pass begins.

    draft_passes: passes of the draft model that the host ran: one per token, for a block draft one per block.
    rounds_by_drafter: rounds with draft tokens, by drafter, under the name of the draft itself. device_seconds: rounds
    that the device ran whole, draft and target together.

    setup_seconds: chat template, tokenizer and checks before the prefill. grammar_seconds: the grammar's part of the
    host's time. total_seconds: the session's time, without the caller's between chunks; first_token_seconds: that up to
    the first chunk.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    restored_tokens: int = 0
    rounds: int = 0
    emitted: int = 0
    looked_up: int = 0
    predicted: int = 0
    predicted_accepted: int = 0
    forced: int = 0
    candidates: int = 0
    caught: int = 0
    fed_again: int = 0
    draft_passes: int = 0
    rounds_by_drafter: dict[str, int] = field(default_factory=dict)
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)
    setup_seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    device_seconds: float = 0.0
    grammar_seconds: float = 0.0
    total_seconds: float = 0.0
    first_token_seconds: float = 0.0

    def add_round(self, sources: Sequence[str], num_accepted: int, num_caught: int = 0) -> None:
        """A round that is over. sources: where each of its draft tokens came from (`RoundOutcome`)."""
        self.rounds += 1
        self.caught += num_caught
        for counts, number in ((self.drafted_by_position, len(sources)), (self.accepted_by_position, num_accepted)):
            counts.extend([0] * (len(sources) - len(counts)))
            for index in range(number):
                counts[index] += 1
        self.forced += sources.count("grammar")
        self.looked_up += sources.count("lookup") + sources.count("prediction")
        self.predicted += sources.count("prediction")
        self.predicted_accepted += sources[:num_accepted].count("prediction")

    def count_drafter(self, name: str) -> None:
        self.rounds_by_drafter[name] = self.rounds_by_drafter.get(name, 0) + 1

    @property
    def drafted(self) -> int:
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; not the papers' per-token probability alpha, which looks at first rejections only."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round, including the bonus or correction token and those after caught candidates: at least 1."""
        return (self.accepted + self.caught + self.rounds) / self.rounds if self.rounds else 0.0

    @property
    def host_seconds(self) -> float:
        """Time of the rounds spent outside the engine."""
        return max(0.0, self.decode_seconds - self.draft_seconds - self.target_seconds - self.device_seconds)

    @property
    def decode_seconds(self) -> float:
        return self.total_seconds - self.setup_seconds - self.prefill_seconds

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the time after the prefill."""
        return self.emitted / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        times = ["setup", "prefill", "first_token", "decode", "draft", "target", "device", "grammar", "host", "total"]
        rounded = [
            "acceptance_rate",
            "mean_acceptance_length",
            "tokens_per_second",
            *(f"{one}_seconds" for one in times),
        ]
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in rounded}
        return counts | {
            "drafted": self.drafted,
            "accepted": self.accepted,
            **{name: round(getattr(self, name), 6) for name in rounded},
        }
