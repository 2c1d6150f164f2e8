"""Drafts from earlier answers of the session: what followed the last three tokens there.

Answers to requests of one kind share their form. An n-gram cache over requests, as in llama.cpp's lookup decoding and
SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence

from .rounds import Source

LENGTH = 3  # tokens of an n-gram
FOLLOWERS = 8  # of an n-gram, the most recent ones
# There are two generations of n-grams; once the newer has so many, it replaces the older: at most 30 MB in all.
GENERATION = 1 << 15
# A token that followed v of n times is assumed to be right with v / (n + 1/2), as if that had been seen 8 times.
UNSEEN, ASSUMED = 0.5, 8.0
RECENT = 100.0  # answers' tokens over which the shares of right ones are taken, by v and n

NGram = tuple[str | int | None, ...]


class NgramCache:
    """Which tokens followed each n-gram of the answers, and how often that told the next token.

    N-grams of different salts are apart (`SamplingParameters.cache_salt`). They share the room, and how often followers
    are right.
    """

    def __init__(self) -> None:
        self._newer: dict[NGram, tuple[int, ...]] = {}
        self._older: dict[NGram, tuple[int, ...]] = {}
        self._judged: dict[tuple[int, int], tuple[float, float]] = {}  # (v, n) -> how often right, how often wrong

    def add(self, tokens: Sequence[int], start: int, salt: str | None) -> None:
        """Remember the answer `tokens[start:]`."""
        for place in range(max(start, LENGTH), len(tokens)):
            token, ngram = tokens[place], (salt, *tokens[place - LENGTH : place])
            followers = self._followers(ngram)
            if followers:
                self._judge(followers, token)
            self._newer[ngram] = (*followers[1 - FOLLOWERS :], token)
            if len(self._newer) >= GENERATION:
                self._older, self._newer = self._newer, {}

    def next(self, last: Sequence[int], salt: str | None) -> tuple[int, float] | None:
        """(the token that most often followed the tokens `last`, the odds that it is right), None if none did.

        Of tokens that followed equally often, the most recent.
        """
        followers = self._followers((salt, *last))
        if not followers:
            return None
        token, votes = _most_frequent(followers)
        right, wrong = self._judged.get((votes, len(followers)), (0.0, 0.0))
        share = votes / (len(followers) + UNSEEN)
        return token, (ASSUMED * share + right) / (ASSUMED * (1.0 - share) + wrong)

    def _followers(self, ngram: NGram) -> tuple[int, ...]:
        """The most recent one is the last."""
        return self._newer.get(ngram) or self._older.get(ngram, ())

    def _judge(self, followers: Sequence[int], token: int) -> None:
        likeliest, votes = _most_frequent(followers)
        right, wrong = self._judged.get((votes, len(followers)), (0.0, 0.0))
        right, wrong = right + (likeliest == token), wrong + (likeliest != token)
        fade = 0.5 if right + wrong > RECENT else 1.0
        self._judged[votes, len(followers)] = right * fade, wrong * fade


class AnswerLookup:
    """Appends the likeliest next token as long as there is one."""

    source: Source = "lookup"

    def __init__(self, answers: NgramCache, salt: str | None) -> None:
        self._answers, self._salt = answers, salt
        self.odds: Sequence[float] = ()

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        last = (*tokens[-LENGTH:], *drafted)[-LENGTH:]
        found, odds = list[int](), list[float]()
        while len(found) < count and (likeliest := self._answers.next(last, self._salt)) is not None:
            found.append(likeliest[0])
            odds.append(likeliest[1])
            last = (*last[1:], likeliest[0])
        self.odds = odds
        return found


def _most_frequent(followers: Sequence[int]) -> tuple[int, int]:
    token = max(reversed(followers), key=followers.count)
    return token, followers.count(token)
