"""Requests as structs: those of `/v1/responses` and `/v1/responses/input_tokens`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..requests import CallId, FunctionTool, Part, ResponseFormat, Role, Sampling, Size, Variables

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
    """include: `message.output_text.logprobs`; others have no effect. store: any, and nothing is stored."""

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=1024)]
    instructions: str | None = None
    max_output_tokens: Size | None = None
    text: TextConfig | None = None
    tools: Annotated[list[OfferedTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Meta(max_length=32)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=64)] | None = None
    chat_template_kwargs: Variables | None = None
