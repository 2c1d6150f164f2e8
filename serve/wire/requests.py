"""Requests as structs: bodies are decoded into these, and `/openapi.json` and docs/http.md are generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...runtime.text.messages import Role

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Limit = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]


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


# Limits of the values with which a template may repeat or count something.
Plain = (
    Annotated[str, Meta(max_length=256)]
    | Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
    | Annotated[float, Meta(ge=-1_000_000, le=1_000_000)]
    | bool
    | None
)
Variables = Annotated[dict[Annotated[str, Meta(max_length=64)], Plain], Meta(max_length=16)]
Messages = Annotated[list[Message], Meta(min_length=1, max_length=1024)]

# Fields of several requests. The descriptions are those of /openapi.json and of docs/http.md.
CHOICE = "`auto` (the default with tools), `none`, `required`, or a tool by name"
Model = Annotated[
    Annotated[str, Meta(max_length=1024)] | None, Meta(description="one of the server's model names; optional")
]
OutputPenalty = Annotated[Penalty | None, Meta(description="-2 to 2")]
Alternatives = Annotated[Likeliest | None, Meta(description="alternatives for each token, up to 20")]
OfferedTools = Annotated[
    Annotated[list[ToolDefinition], Meta(max_length=128)] | None, Meta(description="functions, up to 128")
]
OneCall = Annotated[bool | None, Meta(description="`false`: at most one call")]
TemplateVariables = Annotated[Variables | None, Meta(description="up to 16 variables of the chat template")]
Effort = Annotated[
    Annotated[str, Meta(max_length=64)] | None, Meta(description="sets the chat template's variable of that name")
]
OpenEnd = Annotated[bool | None, Meta(description="`false` ends the prompt after the messages")]
Continued = Annotated[
    bool | None, Meta(description="the answer continues the last message, which must be the assistant's")
]


class Extension(msgspec.Struct, forbid_unknown_fields=True):
    """specexport's own fields."""

    route: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="the kind of request, by which a calibrated bundle decides how to draft"),
    ] = None
    drafter: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="the drafter, instead of `--drafter` and the policy's choice"),
    ] = None
    num_draft_tokens: Annotated[Limit | None, Meta(description="draft tokens per round; 0 decodes plainly")] = None
    speculate: Annotated[bool | None, Meta(description="`false` decodes plainly")] = None
    show_drafts: Annotated[
        bool | None, Meta(description="each chunk of a stream says what was drafted; not for Responses")
    ] = None
    banned_tokens: Annotated[
        Annotated[list[TokenId], Meta(max_length=65536)] | None,
        Meta(description="ids that are never generated; default: the bundle's"),
    ] = None


class Sampling(msgspec.Struct, kw_only=True):
    """What all APIs share."""

    model: Model = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Meta(description="0 (greedy) to 2; default: `--default-temperature`, 1"),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="0 to 1; 0 keeps only the likeliest token")
    ] = None
    top_k: Annotated[Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None, Meta(description="0 and -1 are off")] = None
    min_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="0 to 1; 0 is off")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
        Meta(description="a signed 64-bit number; repeats the text while settings, costs and policy stay the same"),
    ] = None
    stop: Annotated[
        StopText | list[StopText] | None,
        Meta(description="strings of at most 256 characters; default: the bundle's"),
    ] = None
    stop_token_ids: Annotated[list[TokenId] | None, Meta(description="replace the model's own stop tokens")] = None
    min_tokens: Annotated[
        Limit | None, Meta(description="no stop token before this many; at most `max_tokens`; default: the bundle's")
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="the model's own stop tokens do not end the answer")] = None
    presence_penalty: OutputPenalty = None
    frequency_penalty: OutputPenalty = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=100)] | None,
        Meta(description="0.01 to 100; 1 is off; default: the bundle's"),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[str, Bias], Meta(max_length=1024)] | None,
        Meta(description="token ids with numbers from -100 to 100"),
    ] = None
    stream: Annotated[bool | None, Meta(description="answer in server-sent events")] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="requests with different salts share no cache entries or earlier answers"),
    ] = None
    specexport: Annotated[Extension | None, Meta(description="this server's own fields")] = None


class Common(Sampling, kw_only=True):
    """What chat and completions share."""

    max_tokens: Annotated[  # the least is told by `SamplingParameters`: 1, or 0 where a prompt is scored
        Annotated[int, Meta(le=2**31 - 1, extra_json_schema={"minimum": 0})] | None,
        Meta(
            description="default and maximum: the remaining context (completions: default 16); 0 only to score a prompt"
        ),
    ] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=16)] | None,
        Meta(description="answers per prompt, up to 16, and 64 per request; answer i has `seed` + i"),
    ] = None
    stream_options: Annotated[
        StreamOptions | None, Meta(description="with `include_usage` the last chunk has `usage` and `metrics`")
    ] = None
    prediction: Annotated[
        Prediction | None, Meta(description="Predicted Outputs: drafts are looked up in its `content` first")
    ] = None
    prompt_logprobs: Annotated[
        Likeliest | None,
        Meta(description="log-probabilities of the prompt, with up to 20 alternatives per token; not in streams"),
    ] = None
    response_format: Annotated[
        ResponseFormat | None,
        Meta(description="`json_schema` or `json_object`; also in the forms of llama.cpp, Together and TGI"),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        Meta(description="vLLM's: `json`, `regex`, `choice`, `json_object` or, with `--allow-grammars`, `grammar`"),
    ] = None


class ChatRequest(Common, kw_only=True):
    messages: Annotated[
        Messages,
        Meta(description="roles `system`, `developer`, `user`, `assistant`, `tool`; contents: strings or text parts"),
    ]
    max_completion_tokens: Annotated[Size | None, Meta(description="takes precedence over `max_tokens`")] = None
    logprobs: Annotated[
        bool | None, Meta(description="log-probabilities of the answer, before bias, penalties, bans and temperature")
    ] = None
    top_logprobs: Alternatives = None
    tools: OfferedTools = None
    tool_choice: Annotated[Literal["none", "auto", "required"] | NamedTool | None, Meta(description=CHOICE)] = None
    parallel_tool_calls: OneCall = None
    chat_template_kwargs: TemplateVariables = None
    reasoning_effort: Effort = None
    add_generation_prompt: OpenEnd = None
    continue_final_message: Continued = None


class CompletionRequest(Common, kw_only=True):
    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        Meta(description="a string, token ids, or up to 64 of either, answered in order"),
    ]
    logprobs: Annotated[
        Likeliest | Literal[False] | None,
        Meta(description="log-probabilities with this many alternatives per token, up to 20"),
    ] = None
    echo: Annotated[bool | None, Meta(description="the answer begins with the prompt")] = None
    suffix: Annotated[
        str | None, Meta(description="the answer is the text before it; only if the tokenizer has tokens for infilling")
    ] = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """prompt, or messages and the tools that they may call."""

    model: Model = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: OfferedTools = None
    chat_template_kwargs: TemplateVariables = None
    reasoning_effort: Effort = None
    add_generation_prompt: OpenEnd = None
    continue_final_message: Continued = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: Model = None
    tokens: Annotated[list[TokenId], Meta(max_length=1 << 17)]
