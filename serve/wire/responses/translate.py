"""A request of the Responses API as a chat request: items become messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ..body import Parsed
from ..errors import invalid, unsupported
from ..requests import (
    CalledFunction,
    ChatRequest,
    FunctionTool,
    Message,
    NamedFunction,
    NamedTool,
    Part,
    Sampling,
    StreamOptions,
    ToolCall,
    ToolDefinition,
)
from ..translate import flat
from .requests import ChosenTool, Item, Reasoning, ResponsesRequest, TextConfig

T = TypeVar("T")
LOGPROBS = "message.output_text.logprobs"
TEXTS = ("input_text", "output_text", "summary_text", "reasoning_text")
SENT_AS = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.schema",
}


def as_chat(parsed: Parsed[ResponsesRequest]) -> Parsed[ChatRequest]:
    """Raises `ApiError`."""
    request = parsed.request
    if request.specexport is not None and request.specexport.show_drafts:
        raise unsupported("specexport.show_drafts", "events have no place for drafts; use /v1/chat/completions")
    turns = _turns(request)
    tools = [
        ToolDefinition("function", FunctionTool(tool.name, tool.description, tool.parameters, tool.strict))
        for tool in request.tools or ()
    ]
    choice = request.tool_choice
    chat = ChatRequest(
        **{name: getattr(request, name) for name in Sampling.__struct_fields__},
        messages=turns.messages,
        max_tokens=request.max_output_tokens,
        stream_options=StreamOptions(include_usage=True),
        response_format=(request.text or TextConfig()).format,
        logprobs=request.top_logprobs is not None or LOGPROBS in (request.include or ()),
        top_logprobs=request.top_logprobs,
        tools=tools or None,
        tool_choice=NamedTool("function", NamedFunction(choice.name)) if isinstance(choice, ChosenTool) else choice,
        parallel_tool_calls=request.parallel_tool_calls,
        chat_template_kwargs=request.chat_template_kwargs,
        reasoning_effort=(request.reasoning or Reasoning()).effort,
    )
    of_tools = {f"tools[{place}].function": f"tools[{place}]" for place in range(len(tools))}
    return Parsed(chat, parsed.ignored, SENT_AS | of_tools | turns.sent_as | dict(parsed.sent_as))


@dataclass
class Turns:
    """sent_as: names of the items, by those of the messages."""

    messages: list[Message] = field(default_factory=list)
    sent_as: dict[str, str] = field(default_factory=dict)

    def add(self, message: Message, where: str) -> None:
        self.sent_as[f"messages[{len(self.messages)}]"] = where
        self.messages.append(message)

    def assistant(self, where: str, begins: bool) -> Message:
        """The message for one more item of the assistant. begins: whether the item comes before text and calls."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or (begins and (last.content is not None or last.tool_calls)):
            self.add(Message("assistant"), where)
        return self.messages[-1]


def _turns(request: ResponsesRequest) -> Turns:
    turns = Turns()
    if request.instructions:
        turns.add(Message("system", request.instructions), "instructions")
    if isinstance(request.input, str):
        turns.add(Message("user", request.input), "input")
        return turns
    for place, item in enumerate(request.input):
        _add(turns, item, f"input[{place}]")
    if len(turns.messages) == bool(request.instructions):
        raise invalid("input", "input has no message; add one")
    return turns


def _add(turns: Turns, item: Item, where: str) -> None:
    match item.type or "message":
        case "message" if item.role in (None, "tool"):
            raise invalid(
                f"{where}.role", f"{where}.role is {item.role or 'missing'}; expected user, assistant or system"
            )
        case "message" if item.role == "assistant":
            text = _text(item.content, f"{where}.content")
            turns.assistant(where, begins=True).content = text
        case "message":
            assert item.role is not None
            turns.add(Message(item.role, _text(item.content, f"{where}.content")), where)
        case "reasoning":
            if thoughts := _text(item.content or item.summary or "", f"{where}.content"):
                message = turns.assistant(where, begins=True)
                message.reasoning_content = "\n".join(filter(None, (message.reasoning_content, thoughts)))
        case "function_call":
            call = ToolCall(
                _given(item.call_id, f"{where}.call_id"), CalledFunction(_given(item.name, f"{where}.name"))
            )
            call.function.arguments = item.arguments
            message = turns.assistant(where, begins=False)
            message.tool_calls = [*(message.tool_calls or []), call]
            at = f"messages[{len(turns.messages) - 1}].tool_calls"
            turns.sent_as[f"{at}[{len(message.tool_calls) - 1}].function"] = where
            turns.sent_as.setdefault(at, where)
        case "function_call_output":
            called, text = _given(item.call_id, f"{where}.call_id"), _text(item.output, f"{where}.output")
            turns.add(Message("tool", text, tool_call_id=called), where)
            turns.sent_as[f"messages[{len(turns.messages) - 1}].tool_call_id"] = f"{where}.call_id"
        case "item_reference":
            raise unsupported(f"{where}.type", "nothing is stored; send the item itself (store: false in the client)")
        case other:
            raise unsupported(f"{where}.type", f"items of type {other!r}; this server has messages and functions only")


def _text(content: str | list[Part] | None, where: str) -> str:
    if not isinstance(content, list):
        return _given(content, where)
    return flat([Part("text", part.text) if part.type in TEXTS else part for part in content], where)


def _given(value: T | None, where: str) -> T:
    if value is None:
        raise invalid(where, f"{where} is missing")
    return value
