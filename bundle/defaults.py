"""What a request has that does not say: settings of the target's own checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Defaults:
    """Of `generation_config.json`: settings by the names of sampling parameters, each at first as it is without one.

    sampling: what it recommends to requests that sample, as `top_p 0.9`; requests have to say it. left_out: settings
    that nothing applies.
    """

    repetition_penalty: float = 1.0
    banned_tokens: tuple[int, ...] = ()
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def within(self, vocab_size: int) -> Defaults:
        """Without tokens that the vocabulary lacks: banning them has no effect."""
        return replace(self, banned_tokens=tuple(token for token in self.banned_tokens if 0 <= token < vocab_size))

    @property
    def lines(self) -> Iterator[str]:
        """What it says and what becomes of it, for people."""
        applied = [f"repetition_penalty {self.repetition_penalty:g}"] if self.repetition_penalty != 1.0 else []
        applied += [f"banned_tokens {' '.join(map(str, self.banned_tokens))}"] if self.banned_tokens else []
        applied += [f"min_new_tokens {self.min_new_tokens}"] if self.min_new_tokens else []
        applied += [f"stop {' '.join(map(repr, self.stop))}"] if self.stop else []
        if applied:
            yield f"{', '.join(applied)}: for requests that do not say otherwise"
        if self.sampling:
            yield f"{', '.join(self.sampling)}: recommended for sampling; requests have to say it"
        if self.left_out:
            yield f"{', '.join(self.left_out)}: left out, nothing applies it"
