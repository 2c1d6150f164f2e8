"""`/v1/responses` and its count of tokens: answers of the Responses API, whole and as events."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import msgspec

from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.tools.answer import Thought
from ...runtime.tools.calls import Argued, Begun, Part
from ..http.exchange import Exchange
from ..service import Service
from ..wire.answers import Drafts, Metrics, Usage
from ..wire.body import parse
from ..wire.errors import ApiError, as_sent
from ..wire.logprobs import chat_logprobs
from ..wire.responses.answers import (
    Event,
    FunctionCall,
    IncompleteDetails,
    InputDetails,
    InputTokens,
    OutputDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseAnswer,
    ResponseError,
    ResponseUsage,
)
from ..wire.responses.requests import Reasoning, ResponsesRequest
from ..wire.responses.translate import as_chat
from ..wire.tools import new_call_id
from .about import tokens_of
from .generate import converse, note_ignored
from .shapes import Logprobs, Shape, Whole

ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


async def responses(service: Service, exchange: Exchange) -> None:
    parsed = parse(ResponsesRequest, await exchange.body(), service.settings.strict_fields)
    shape = ResponsesShape(service, parsed.request)
    exchange.last_words = shape.failure
    await converse(service, exchange, as_chat(parsed), lambda _: shape)


async def input_tokens(service: Service, exchange: Exchange) -> None:
    parsed = as_chat(parse(ResponsesRequest, await exchange.body(), service.settings.strict_fields))
    note_ignored(service, exchange, parsed.ignored)
    with as_sent(parsed.sent_as):
        count = len(await tokens_of(service, exchange, parsed.request))
    await exchange.answer(200, msgspec.json.encode(InputTokens(count)))


class ResponsesShape(Shape):
    """Items are closed when the next one begins: thoughts, text, calls. Log-probabilities, which are of the whole
    output, come with the text.
    """

    done = False

    def __init__(self, service: Service, request: ResponsesRequest) -> None:
        self._service, self._streams = service, bool(request.stream)
        self._answer = _begun(service, request)
        self._item: OutputItem | None = None  # the one that is still open
        self._entries: list[TokenLogprobs] = []  # to be sent with the next text
        self._events: list[bytes] = []
        self._told = 0

    def begin(self) -> bytes:
        self._tell("created", response=self._answer)
        self._tell("in_progress", response=self._answer)
        return self._taken()

    def piece(self, index: int, part: Part | Thought, logprobs: Logprobs, drafts: Drafts | None) -> bytes:
        self._entries += logprobs or []
        match part:
            case Thought(text):
                self._say(ReasoningItem, text)
            case str() if part:
                self._say(OutputMessage, part)
            case Begun(_, name):
                self._open(FunctionCall(id=_id("fc"), call_id=new_call_id(), name=name))
            case Argued(_, text) if isinstance(self._item, FunctionCall):
                self._item.arguments += text
                self._tell("function_call_arguments.delta", **self._place(), delta=text)
        return self._taken()

    def finish(self, index: int, reason: str, logprobs: Logprobs) -> bytes:
        self._entries += logprobs or []
        answer, cut = self._answer, reason == "length"
        if not cut and not any(isinstance(item, OutputMessage | FunctionCall) for item in answer.output):
            self._say(OutputMessage, "")
        if isinstance(self._item, OutputMessage):
            self._item.content[0].logprobs += self._logprobs()
        if cut:
            answer.incomplete_details = IncompleteDetails("max_output_tokens")
        cut = cut or (reason == "stop" and isinstance(self._item, FunctionCall))  # by a stop string
        answer.status = "incomplete" if cut else "completed"
        self._close(answer.status)
        return self._taken()

    def usage(self, usage: Usage, metrics: Metrics) -> bytes:
        self._end(usage, metrics)
        self._tell(self._answer.status, response=self._answer)
        return self._taken()

    def whole(self, choices: list[Whole], usage: Usage, metrics: Metrics) -> msgspec.Struct:
        (choice,) = choices
        if choice.thoughts:
            self.piece(0, Thought(choice.thoughts), None, None)
        self.piece(0, choice.text, choice.logprobs, None)
        for place, (name, arguments) in enumerate(choice.calls):
            self.piece(0, Begun(place, name), None, None)
            self.piece(0, Argued(place, arguments), None, None)
        self.finish(0, choice.finish_reason, None)
        self._end(usage, metrics)
        return self._answer

    def failure(self, error: ApiError) -> bytes:
        message = " ".join(str(error).split())
        self._tell("error", code=error.code, message=message, param=error.param)
        self._answer.status = "failed"
        self._answer.error = ResponseError(ERROR_CODES.get(error.status, "server_error"), message)
        self._tell("failed", response=self._answer)
        return self._taken()

    def _end(self, usage: Usage, metrics: Metrics) -> None:
        self._answer.usage = ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputDetails(usage.completion_tokens_details.reasoning_tokens),
            usage.total_tokens,
        )
        self._answer.metrics = metrics

    def _say(self, kind: type[ReasoningItem] | type[OutputMessage], text: str) -> None:
        """More of the text of an item of that kind, which is opened if it is not open."""
        if not isinstance(self._item, kind):
            self._open(kind(id=_id("rs" if kind is ReasoningItem else "msg")))
        item = self._item
        if isinstance(item, ReasoningItem):
            item.content[0].text += text
            self._tell("reasoning_text.delta", **self._place(), content_index=0, delta=text)
        elif isinstance(item, OutputMessage) and text:
            logprobs = self._logprobs()
            item.content[0].text += text
            item.content[0].logprobs += logprobs
            self._tell("output_text.delta", **self._place(), content_index=0, delta=text, logprobs=logprobs)

    def _open(self, item: OutputItem) -> None:
        self._close("completed")
        self._item = item
        self._answer.output.append(item)
        self._tell("output_item.added", output_index=len(self._answer.output) - 1, item=item)
        if not isinstance(item, FunctionCall):
            part = ReasoningText() if isinstance(item, ReasoningItem) else OutputText()
            self._tell("content_part.added", **self._place(), content_index=0, part=part)
            item.content.append(part)  # type: ignore[arg-type]

    def _close(self, status: str) -> None:
        item = self._item
        if item is None:
            return
        place, self._item = self._place(), None
        item.status = status
        if isinstance(item, FunctionCall):
            self._tell("function_call_arguments.done", **place, name=item.name, arguments=item.arguments)
        else:
            part = item.content[0]
            kind, logprobs = "reasoning_text", {}
            if isinstance(part, OutputText):
                kind, logprobs = "output_text", {"logprobs": part.logprobs}
            self._tell(f"{kind}.done", **place, content_index=0, text=part.text, **logprobs)
            self._tell("content_part.done", **place, content_index=0, part=part)
        self._tell("output_item.done", output_index=place["output_index"], item=item)

    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"output_index": len(self._answer.output) - 1, "item_id": self._item.id}

    def _logprobs(self) -> list[Any]:
        entries, self._entries = self._entries, []
        return chat_logprobs(entries, self._service.texts).content

    def _tell(self, kind: str, **fields: Any) -> None:
        """Encoded at once, since items go on growing."""
        if self._streams:
            name = kind if kind == "error" else f"response.{kind}"
            event = msgspec.json.encode(Event(type=name, sequence_number=self._told, **fields))
            self._events.append(b"event: " + name.encode() + b"\ndata: " + event + b"\n\n")
            self._told += 1

    def _taken(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)


def _begun(service: Service, request: ResponsesRequest) -> ResponseAnswer:
    default = service.settings.default_temperature
    form = None if request.text is None else request.text.format
    choice = request.tool_choice
    return ResponseAnswer(
        id=_id("resp"),
        created_at=int(time.time()),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        model=service.name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=msgspec.to_builtins(request.reasoning or Reasoning()),
        temperature=default if request.temperature is None else request.temperature,
        text={"format": _given(form) if form is not None else {"type": "text"}},
        tool_choice="auto" if choice is None else msgspec.to_builtins(choice),
        tools=msgspec.to_builtins(request.tools or []),
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p,
    )


def _given(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(struct).items() if value is not None}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"
