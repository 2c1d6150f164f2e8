"""Requests as structs: bodies are decoded into these, and `/openapi.json` is generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Limit = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Part(msgspec.Struct):
    """text: of a part of type `text`; refusal: of one of that type, as OpenAI's answers have it."""

    type: Annotated[str, Meta(max_length=64)]
    text: str | None = None
    refusal: str | None = None


class Prediction(msgspec.Struct):
    type: Literal["content"]
    content: str | list[Part]


class CalledFunction(msgspec.Struct):
    """arguments: a JSON object, as text, which may have been cut off, or as it is; none for a call without."""

    name: Annotated[str, Meta(max_length=64)]
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    id: CallId
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct):
    """reasoning_content: the assistant's thoughts, as in an answer, for templates that write them; `reasoning` is
    another name. refusal: OpenAI's field for an answer that refuses, part of the content.
    """

    role: Role
    content: str | Annotated[list[Part], Meta(max_length=1024)] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: CallId | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class FunctionTool(msgspec.Struct):
    """parameters: JSON schema of an object. strict: as in `json_schema`; calls satisfy their schema anyway."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct):
    type: Literal["function"]
    function: FunctionTool


class NamedFunction(msgspec.Struct):
    name: Annotated[str, Meta(max_length=64)]


class NamedTool(msgspec.Struct):
    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[ToolDefinition], Meta(max_length=128)]


class JsonSchema(msgspec.Struct):
    """strict: a schema that cannot be enforced is refused instead of relaxed."""

    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """OpenAI's, and the forms of other servers. schema: as in llama.cpp and Together, with the other fields of
    `JsonSchema` beside it. value: a schema or a regex, as in TGI. pattern: a regex, as in Together.
    """

    type: Literal["text", "json_object", "json_schema", "json", "regex"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    value: dict[str, Any] | str | None = None
    pattern: str | None = None


class StructuredOutputs(msgspec.Struct):
    """As in vLLM; exactly one of them. json: a schema or its text. grammar: Lark, where the server allows it.
    json_object: any object.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(max_length=1024)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Extension(msgspec.Struct, forbid_unknown_fields=True):
    """specexport's own fields. show_drafts: each chunk says what was drafted, and which of it was rejected."""

    route: Annotated[str, Meta(max_length=256)] | None = None
    drafter: Annotated[str, Meta(max_length=64)] | None = None
    num_draft_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    speculate: bool | None = None
    show_drafts: bool | None = None
    banned_tokens: Annotated[list[TokenId], Meta(max_length=65536)] | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """What all APIs share. ignore_eos: the model's own stop tokens end nothing."""

    model: Annotated[str, Meta(max_length=1024)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | list[StopText] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    specexport: Extension | None = None


class Common(Sampling, kw_only=True):
    """What chat and completions share. n: answers to each prompt. max_tokens: 0 only for the prompt's
    log-probabilities, or its echo.
    """

    max_tokens: Limit | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    prompt_logprobs: Likeliest | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


# Limits of the values with which a template may repeat or count something.
Plain = (
    Annotated[str, Meta(max_length=256)]
    | Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
    | Annotated[float, Meta(ge=-1_000_000, le=1_000_000)]
    | bool
    | None
)
Variables = Annotated[dict[Annotated[str, Meta(max_length=64)], Plain], Meta(max_length=16)]


class ChatRequest(Common, kw_only=True):
    """chat_template_kwargs: variables of the chat template. reasoning_effort: one of them. continue_final_message: the
    answer continues the last message, an assistant's.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=1024)]
    max_completion_tokens: Size | None = None
    logprobs: bool | None = None
    top_logprobs: Likeliest | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Variables | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(Common, kw_only=True):
    """prompt: a text, texts, token ids, or lists of token ids; at most 64 prompts. suffix: what follows the answer."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Likeliest | Literal[False] | None = None
    echo: bool | None = None
    suffix: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """prompt, or messages and the tools that they may call."""

    model: Annotated[str, Meta(max_length=1024)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=1024)] | None = None
    tools: Tools | None = None
    chat_template_kwargs: Variables | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, Meta(max_length=1024)] | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=1 << 17)]
