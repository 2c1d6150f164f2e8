"""A request's rounds as they are sent: text, log-probabilities, drafts, and counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic

from ...runtime.loop.chunks import Chunk
from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.state.statistics import Statistics
from ...runtime.tools.answer import AnswerReader, Thought, merged
from ...runtime.tools.calls import Part
from ..engine.job import Job
from ..service import Service
from ..wire.answers import Drafted, Drafts, Next
from ..wire.logprobs import Characters


class Entries:
    """Log-probabilities are sent together with their text, so those of a text that a stop string cut off are never
    sent.
    """

    def __init__(self, characters: Characters, stop_tokens: frozenset[int], keeps_stop: bool = False) -> None:
        """keeps_stop: a stop token has an entry too."""
        self._characters, self._stop_tokens, self._keeps_stop = characters, stop_tokens, keeps_stop
        self._held: list[TokenLogprobs] = []
        self._ends: list[int | None] = []  # characters up to each one's end, None inside a character
        self._sent = 0  # characters

    def add(self, chunk: Chunk) -> list[TokenLogprobs]:
        """Those that may be sent with the chunk's text."""
        if not chunk.logprobs and not self._held:
            return []
        for entry in chunk.logprobs:
            self._characters.add(entry.token)
            self._held.append(entry)
            self._ends.append(self._characters.end if self._characters.whole else None)
        self._sent += len(chunk.text)
        by_token = chunk.finish_reason == "stop" and bool(chunk.tokens) and chunk.tokens[-1] in self._stop_tokens
        if by_token and not self._keeps_stop:
            self._held.pop()  # a stop token has no text, and no entry
        if by_token or chunk.finish_reason == "length":
            count = len(self._held)
        else:
            covered = [place for place, end in enumerate(self._ends) if end is not None and end <= self._sent]
            count = covered[-1] + 1 if covered else 0
        released, self._held, self._ends = self._held[:count], self._held[count:], self._ends[count:]
        return released


@dataclass
class Piece:
    parts: list[Part | Thought]
    entries: list[TokenLogprobs]
    drafts: Drafts | None


@dataclass
class Output:
    """The output for one prompt, from the queue to its last round. Iterate once."""

    service: Service
    job: Job
    characters: Characters
    show_drafts: bool = False
    reader: AnswerReader | None = None  # if it may think or call tools
    keeps_stop: bool = False  # see `Entries`
    scored: tuple[TokenLogprobs, ...] = ()  # of the prompt
    statistics: Statistics | None = None
    finish_reason: str = "abort"
    rounds: int = 0
    thought: int = 0  # tokens of thoughts and of the markers around them
    _maybe: int = 0  # tokens at the start that may be part of them
    entries: Entries = field(init=False)

    def __post_init__(self) -> None:
        of_request = self.job.parameters.stop_token_ids
        stops = self.service.session.bundle.manifest.text.stop_token_ids if of_request is None else of_request
        assert isinstance(stops, Sequence)
        self.entries = Entries(self.characters, frozenset(stops), self.keeps_stop)

    async def pieces(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> AsyncGenerator[Piece, None]:
        """Raises the engine's error; ends without a last piece if the client has left.

        meanwhile: awaited whenever nothing has come for a while.
        """
        patience = self.service.settings.ping_interval
        async with aclosing(self.job.chunks(patience, meanwhile)) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason == "cancelled":
                    return
                self.statistics = chunk.statistics
                self.scored = self.scored or chunk.prompt_logprobs
                if chunk.tokens:
                    self.service.metrics.round(len(chunk.tokens))
                parts = self._parts(chunk)
                drafts = self._drafts(chunk) if self.show_drafts else None
                self.rounds += 1
                yield Piece(parts, self.entries.add(chunk), drafts)

    def _parts(self, chunk: Chunk) -> list[Part | Thought]:
        """The chunk's text as thoughts, content and calls; at the end also the reason for ending."""
        reader = self.reader
        if reader is None:
            self.finish_reason = chunk.finish_reason or self.finish_reason
            return [chunk.text] if chunk.text else []
        parts: list[Part | Thought] = []
        for piece in chunk.pieces:
            within = reader.thinks
            parts += reader.add(piece)
            self._maybe += bool(chunk.tokens)
            if within or reader.thinks:  # the markers' tokens too
                self.thought += self._maybe
            self._maybe *= reader.undecided
        if chunk.finish_reason is not None:
            parts += reader.end()
            # A stop string may cut off a call as well; such a call must not be executed.
            called = chunk.finish_reason == "stop" and reader.whole
            self.finish_reason = "tool_calls" if called else chunk.finish_reason
        return merged(parts)

    def count(self) -> None:
        """Called at its end, however that comes."""
        waited = (self.job.queue_seconds, monotonic() - self.job.created)
        self.service.metrics.latencies(tuple(self.job.rounds))
        self.service.metrics.finished(self.statistics, self.finish_reason, self.job.parameters.route, waited)

    def _drafts(self, chunk: Chunk) -> Drafts:
        texts, accepted = self.service.texts, chunk.accepted
        drafted = [
            Drafted(token, texts.text_of(token), source, place < accepted)
            for place, (token, source) in enumerate(zip(chunk.draft_tokens, chunk.sources, strict=True))
        ]
        rest = chunk.tokens[accepted:]
        following = Next(rest[0], texts.text_of(rest[0])) if rest else None
        return Drafts(self.rounds, drafted, following, list(chunk.pieces))
