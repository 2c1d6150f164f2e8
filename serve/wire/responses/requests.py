"""Requests as structs: those of `/v1/responses` and `/v1/responses/input_tokens`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ....runtime.text.messages import Role
from ..requests import (
    CHOICE,
    Alternatives,
    CallId,
    FunctionTool,
    OneCall,
    Part,
    ResponseFormat,
    Sampling,
    Size,
    TemplateVariables,
)

Parts = Annotated[list[Part], Meta(max_length=1024)]


class Item(msgspec.Struct):
    """A message, or what its type says: `function_call`, `function_call_output`, `reasoning`. Those of an answer may be
    sent back as they are: id, status, phase and encrypted_content have no effect.
    """

    type: Annotated[str, Meta(max_length=64)] | None = None
    role: Role | None = None
    content: str | Parts | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    arguments: str | None = None
    call_id: CallId | None = None
    output: str | Parts | None = None
    summary: Parts | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    encrypted_content: str | None = None


class OfferedTool(FunctionTool, kw_only=True):
    type: Literal["function"]


class ChosenTool(msgspec.Struct):
    type: Literal["function"]
    name: Annotated[str, Meta(max_length=64)]


class TextConfig(msgspec.Struct):
    format: ResponseFormat | None = None


class Reasoning(msgspec.Struct):
    """effort: a variable of the chat template. The others have no effect: thoughts are sent whole."""

    effort: Annotated[str, Meta(max_length=64)] | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(Sampling, kw_only=True):
    input: Annotated[
        str | Annotated[list[Item], Meta(min_length=1, max_length=1024)],
        Meta(description="a string, or messages, `function_call`, `function_call_output` and `reasoning` items"),
    ]
    instructions: Annotated[str | None, Meta(description="a system message before the input")] = None
    max_output_tokens: Annotated[Size | None, Meta(description="default: the remaining context")] = None
    text: Annotated[TextConfig | None, Meta(description="its `format` is like `response_format` in chat")] = None
    tools: Annotated[
        Annotated[list[OfferedTool], Meta(max_length=128)] | None, Meta(description="functions, up to 128")
    ] = None
    tool_choice: Annotated[Literal["none", "auto", "required"] | ChosenTool | None, Meta(description=CHOICE)] = None
    parallel_tool_calls: OneCall = None
    reasoning: Annotated[Reasoning | None, Meta(description="its `effort` is like `reasoning_effort` in chat")] = None
    include: Annotated[
        Annotated[list[str], Meta(max_length=32)] | None,
        Meta(description="`message.output_text.logprobs`; others have no effect"),
    ] = None
    top_logprobs: Alternatives = None
    store: Annotated[bool | None, Meta(description="no effect: nothing is stored")] = None
    metadata: Annotated[
        Annotated[dict[str, str], Meta(max_length=64)] | None, Meta(description="returned with the answer")
    ] = None
    chat_template_kwargs: TemplateVariables = None
