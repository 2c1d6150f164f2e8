"""The two shapes of an answer, chat and completions, whole and in chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.tools.answer import Thought
from ...runtime.tools.calls import Argued, Begun, Part, joined
from ..service import Service
from ..wire.answers import (
    AnsweredCall,
    AnsweredFunction,
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    Chunk,
    CompletionAnswer,
    CompletionLogprobs,
    Delta,
    DeltaCall,
    DeltaChoice,
    DeltaFunction,
    Drafts,
    Metrics,
    PromptLogprobs,
    TextChoice,
    Usage,
)
from ..wire.logprobs import CompletionEntries, chat_logprobs, prompt_logprobs
from ..wire.tools import new_call_id
from .work import Work

Logprobs = list[TokenLogprobs] | None  # None if the request asks for none


@dataclass
class Whole:
    """One choice of an answer, complete. calls: (name, arguments) of each."""

    thoughts: str
    text: str
    calls: list[tuple[str, str]]
    logprobs: Logprobs
    finish_reason: str

    @classmethod
    def of(cls, parts: list[Part | Thought], logprobs: Logprobs, finish_reason: str) -> Whole:
        thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
        text, calls = joined([part for part in parts if not isinstance(part, Thought)])
        return cls(thoughts, text, calls, logprobs, finish_reason)


Sent = Chunk | bytes  # a chunk, or events as they are sent


class Shape(Protocol):
    """done: whether `[DONE]` ends a stream."""

    done: bool = True

    def begin(self) -> bytes:
        """Events that open a stream, while nothing has come."""
        return b""

    def start(self, index: int, part: Part | Thought) -> Sent | None:
        """What opens a choice before its first part."""
        ...

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> Sent: ...

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> Sent:
        """logprobs: for tokens at the end that add nothing to the answer."""
        ...

    def usage(self, usage: Usage, metrics: Metrics) -> Sent: ...

    def whole(self, choices: list[Whole], usage: Usage, metrics: Metrics) -> msgspec.Struct: ...


@dataclass
class Head:
    """What an answer and all its chunks have in common. usage: whether the client asked for it at the end."""

    service: Service
    prefix: str
    object: str
    with_usage: bool
    id: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        self.id, self.created = f"{self.prefix}-{uuid4().hex}", int(time.time())

    def chunk(self, choices: list[DeltaChoice] | list[TextChoice], drafts: Drafts | None = None) -> Chunk:
        return Chunk(
            id=self.id,
            object=self.object,
            created=self.created,
            model=self.service.name,
            system_fingerprint=self.service.fingerprint,
            choices=choices,
            usage=None if self.with_usage else msgspec.UNSET,
            specexport=msgspec.UNSET if drafts is None else drafts,
        )

    def last(self, usage: Usage, metrics: Metrics) -> Chunk:
        chunk = self.chunk([])
        chunk.usage, chunk.metrics = usage, metrics
        return chunk

    def whole(self, kind: type[msgspec.Struct], **rest: Any) -> msgspec.Struct:
        """An answer in one piece."""
        service = self.service
        head = {"id": self.id, "created": self.created, "model": service.name}
        return kind(**head, system_fingerprint=service.fingerprint, **rest)


def _scored(work: Work | None, index: int) -> PromptLogprobs | msgspec.UnsetType:
    """Of the prompt, if the request asks for them."""
    count = work.request.prompt_logprobs if work is not None else None
    if work is None or count is None:
        return msgspec.UNSET
    return prompt_logprobs(work.outputs[index].scored, count, work.service.texts)


class ChatShape(Shape):
    def __init__(self, service: Service, with_usage: bool, work: Work | None = None) -> None:
        self._service, self._work = service, work
        self._head = Head(service, "chatcmpl", "chat.completion.chunk", with_usage)

    def start(self, index: int, part: Part | Thought) -> Chunk | None:
        content = "" if isinstance(part, str) else None  # as in a whole answer
        return self._head.chunk([DeltaChoice(index, Delta(role="assistant", content=content))])

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> Chunk:
        entries = None if logprobs is None else chat_logprobs(logprobs, self._service.texts)
        return self._head.chunk([DeltaChoice(index, _delta(part), entries)], drafts)

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> Chunk:
        entries = None if logprobs is None else chat_logprobs(logprobs, self._service.texts)
        return self._head.chunk([DeltaChoice(index, Delta(), entries, reason)])

    def usage(self, usage: Usage, metrics: Metrics) -> Chunk:
        return self._head.last(usage, metrics)

    def whole(self, choices: list[Whole], usage: Usage, metrics: Metrics) -> msgspec.Struct:
        texts = self._service.texts
        made = [
            ChatChoice(
                index,
                _message(choice),
                None if choice.logprobs is None else chat_logprobs(choice.logprobs, texts),
                choice.finish_reason,
            )
            for index, choice in enumerate(choices)
        ]
        scored = _scored(self._work, 0)
        return self._head.whole(ChatAnswer, choices=made, usage=usage, metrics=metrics, prompt_logprobs=scored)


def _delta(part: Part | Thought) -> Delta:
    match part:
        case Thought(text):
            return Delta(reasoning_content=text)
        case str():
            return Delta(content=part)
        case Begun(place, name):
            first = DeltaFunction(name=name, arguments="")
            return Delta(tool_calls=[DeltaCall(index=place, id=new_call_id(), type="function", function=first)])
        case Argued(place, text):
            return Delta(tool_calls=[DeltaCall(index=place, function=DeltaFunction(arguments=text))])


def _message(choice: Whole) -> AnswerMessage:
    thoughts = choice.thoughts or msgspec.UNSET
    if not choice.calls:
        return AnswerMessage("assistant", choice.text, None, thoughts)
    calls = [
        AnsweredCall(id=new_call_id(), function=AnsweredFunction(name, arguments)) for name, arguments in choice.calls
    ]
    return AnswerMessage("assistant", choice.text or None, None, thoughts, calls)


class TextShape(Shape):
    def __init__(self, service: Service, with_usage: bool, work: Work) -> None:
        self._service, self._work = service, work
        self._head = Head(service, "cmpl", "text_completion", with_usage)
        self._sent: dict[int, CompletionEntries] = {}  # by choice

    def start(self, index: int, part: Part | Thought) -> Chunk | None:
        if not self._work.echoes:
            return None
        return self._head.chunk([TextChoice(index, self._work.echoes[index], self._echoed(index), None)])

    def _echoed(self, index: int) -> CompletionLogprobs | None:
        work = self._work
        count = work.parameters[index].logprobs
        if count is None:
            return None
        return self._of(index).echo(work.prompts[index], work.outputs[index].scored, work.echoes[index], count)

    def _of(self, index: int) -> CompletionEntries:
        if index not in self._sent:
            self._sent[index] = CompletionEntries(self._service.texts, self._work.characters(index))
        return self._sent[index]

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> Chunk:
        assert isinstance(part, str)  # a prompt that is not a conversation calls nothing
        return self._head.chunk([TextChoice(index, part, self._entries(index, logprobs), None)], drafts)

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> Chunk:
        return self._head.chunk([TextChoice(index, "", self._entries(index, logprobs), reason)])

    def _entries(self, index: int, logprobs: Logprobs) -> CompletionLogprobs | None:
        return None if logprobs is None else self._of(index).add(logprobs)

    def usage(self, usage: Usage, metrics: Metrics) -> Chunk:
        return self._head.last(usage, metrics)

    def whole(self, choices: list[Whole], usage: Usage, metrics: Metrics) -> msgspec.Struct:
        made = []
        for index, choice in enumerate(choices):
            text, logprobs = choice.text, None
            if self._work.echoes:
                text, logprobs = self._work.echoes[index] + text, self._echoed(index)
            entries = self._entries(index, choice.logprobs)
            if logprobs is not None and entries is not None:
                for name in entries.__struct_fields__:
                    getattr(logprobs, name).extend(getattr(entries, name))
            made.append(TextChoice(index, text, logprobs or entries, choice.finish_reason, _scored(self._work, index)))
        return self._head.whole(CompletionAnswer, choices=made, usage=usage, metrics=metrics)
