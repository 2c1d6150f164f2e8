"""The two shapes of an answer, chat and completions, whole and in chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.tools.answer import Thought
from ...runtime.tools.calls import Argued, Begun, Part, joined
from ..wire.answers import (
    AnsweredCall,
    AnsweredFunction,
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatLogprobs,
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
        return None

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> Sent: ...

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> Sent:
        """logprobs: for tokens at the end that add nothing to the answer."""
        ...

    def usage(self, usage: Usage, metrics: Metrics) -> Sent: ...

    def whole(self, choices: list[Whole], usage: Usage, metrics: Metrics) -> msgspec.Struct: ...


class ChunkShape(Shape):
    """A stream of chunks, which have the same head as a whole answer. prefix: of its id. object: of a chunk."""

    prefix: str
    object: str

    def __init__(self, work: Work) -> None:
        service = work.service
        self._work, self._texts, self._with_usage = work, service.texts, work.wants_usage
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{uuid4().hex}",
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": service.fingerprint,
        }

    def usage(self, usage: Usage, metrics: Metrics) -> Chunk:
        chunk = self._chunk([])
        chunk.usage, chunk.metrics = usage, metrics
        return chunk

    def _chunk(self, choices: list[DeltaChoice] | list[TextChoice], drafts: Drafts | None = None) -> Chunk:
        return Chunk(
            **self._head,
            object=self.object,
            choices=choices,
            usage=None if self._with_usage else msgspec.UNSET,
            specexport=msgspec.UNSET if drafts is None else drafts,
        )

    def _scored(self, index: int) -> PromptLogprobs | msgspec.UnsetType:
        """Of the prompt, if the request asks for them."""
        count = self._work.request.prompt_logprobs
        if count is None:
            return msgspec.UNSET
        return prompt_logprobs(self._work.outputs[index].scored, count, self._texts)


class ChatShape(ChunkShape):
    prefix, object = "chatcmpl", "chat.completion.chunk"

    def start(self, index: int, part: Part | Thought) -> Chunk | None:
        content = "" if isinstance(part, str) else None  # as in a whole answer
        return self._chunk([DeltaChoice(index, Delta(role="assistant", content=content))])

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> Chunk:
        return self._chunk([DeltaChoice(index, _delta(part), self._entries(logprobs))], drafts)

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> Chunk:
        return self._chunk([DeltaChoice(index, Delta(), self._entries(logprobs), reason)])

    def whole(self, choices: list[Whole], usage: Usage, metrics: Metrics) -> msgspec.Struct:
        made = [
            ChatChoice(index, _message(choice), self._entries(choice.logprobs), choice.finish_reason)
            for index, choice in enumerate(choices)
        ]
        scored = self._scored(0)
        return ChatAnswer(**self._head, choices=made, usage=usage, metrics=metrics, prompt_logprobs=scored)

    def _entries(self, logprobs: Logprobs) -> ChatLogprobs | None:
        return None if logprobs is None else chat_logprobs(logprobs, self._texts)


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


class TextShape(ChunkShape):
    prefix, object = "cmpl", "text_completion"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._sent: dict[int, CompletionEntries] = {}  # by choice

    def start(self, index: int, part: Part | Thought) -> Chunk | None:
        if not self._work.echoes:
            return None
        return self._chunk([TextChoice(index, self._work.echoes[index], self._echoed(index), None)])

    def _echoed(self, index: int) -> CompletionLogprobs | None:
        work = self._work
        count = work.parameters[index].logprobs
        if count is None:
            return None
        return self._of(index).echo(work.prompts[index], work.outputs[index].scored, work.echoes[index], count)

    def _of(self, index: int) -> CompletionEntries:
        if index not in self._sent:
            self._sent[index] = CompletionEntries(self._texts, self._work.characters(index))
        return self._sent[index]

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> Chunk:
        assert isinstance(part, str)  # a prompt that is not a conversation calls nothing
        return self._chunk([TextChoice(index, part, self._entries(index, logprobs), None)], drafts)

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> Chunk:
        return self._chunk([TextChoice(index, "", self._entries(index, logprobs), reason)])

    def _entries(self, index: int, logprobs: Logprobs) -> CompletionLogprobs | None:
        return None if logprobs is None else self._of(index).add(logprobs)

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
            made.append(TextChoice(index, text, logprobs or entries, choice.finish_reason, self._scored(index)))
        return CompletionAnswer(**self._head, choices=made, usage=usage, metrics=metrics)
