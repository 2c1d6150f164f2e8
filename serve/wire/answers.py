"""Answers as structs, field by field as the OpenAI API has them; `specexport` and `metrics` are extra keys."""

from __future__ import annotations

from typing import Any

import msgspec

from ...runtime.state.statistics import Statistics


class PromptDetails(msgspec.Struct):
    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SpeculativeDecoding(msgspec.Struct):
    """Counts and times of a request, by vLLM's names. acceptance_histogram[i]: rounds with a draft of which i tokens
    were accepted.

    mean_acceptance_length: mean tokens of such a round, the target's own included. num_spec_tokens: the most that the
    bundle drafts.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(msgspec.Struct):
    time_to_first_token_ms: float
    queue_time_ms: float
    generation_time_ms: float
    mean_itl_ms: float
    speculative_decoding: SpeculativeDecoding


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """null for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # as in vLLM: by token id, null for the first token


class Drafted(msgspec.Struct):
    id: int
    text: str
    source: str
    accepted: bool


class Next(msgspec.Struct):
    id: int
    text: str


class Drafts(msgspec.Struct):
    """The draft of one round, counted from 0. next: the token that the target chose itself, if it belongs to the
    output.

    pieces: the text that each of the round's tokens adds, "" for half a character; the tokens are the accepted ones,
    and next.
    """

    round: int
    drafted: list[Drafted]
    next: Next | None
    pieces: list[str]


class AnsweredFunction(msgspec.Struct):
    name: str
    arguments: str


class AnsweredCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: AnsweredFunction


class AnswerMessage(msgspec.Struct):
    """content: null if there are only calls. reasoning_content: the thoughts of models that think."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnsweredCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class DeltaFunction(msgspec.Struct, omit_defaults=True, kw_only=True):
    name: str | None = None
    arguments: str


class DeltaCall(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A part of a call. The first part has all fields, with empty arguments; the others have index and arguments."""

    index: int
    id: str | None = None
    type: str | None = None
    function: DeltaFunction


class Delta(msgspec.Struct, omit_defaults=True):
    """content: null only if a call or a thought opens the answer."""

    role: str | None = None
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | None = None
    tool_calls: list[DeltaCall] | None = None


class DeltaChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Chunk(msgspec.Struct, kw_only=True):
    """A chunk of a stream, of either kind. usage is left out unless the client asked for it."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[DeltaChoice] | list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET
    specexport: Drafts | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    metrics: Metrics


class Model(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "specexport"
    max_model_len: int
    meta: dict[str, Any]


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Model]


class Tokenized(msgspec.Struct):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    prompt: str


def usage_of(*requests: Statistics, thought: int = 0, answers: int = 1) -> Usage:
    """thought: tokens of thoughts, which are completion tokens as well. answers: to each prompt, which counts once."""
    prompts = requests[::answers]
    prompt, emitted = sum(row.prompt_tokens for row in prompts), sum(row.emitted for row in requests)
    accepted = sum(row.predicted_accepted for row in requests)
    rejected = sum(row.predicted for row in requests) - accepted
    cached = PromptDetails(sum(row.reused_tokens for row in prompts))
    return Usage(prompt, emitted, prompt + emitted, cached, CompletionDetails(thought, accepted, rejected))


def speculative_decoding(requests: tuple[Statistics, ...], most: int) -> SpeculativeDecoding:
    drafted, accepted = sum(row.drafted for row in requests), sum(row.accepted for row in requests)
    steps = sum(row.drafted_by_position[0] for row in requests if row.drafted_by_position)
    reached = [steps]  # rounds in which at least so many draft tokens were accepted
    for place in range(max((len(row.accepted_by_position) for row in requests), default=0)):
        reached.append(
            sum(row.accepted_by_position[place] for row in requests if len(row.accepted_by_position) > place)
        )
    histogram = [here - further for here, further in zip(reached, [*reached[1:], 0], strict=True)]
    return SpeculativeDecoding(
        mean_acceptance_length=(accepted + steps) / steps if steps else 1.0,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_histogram=histogram,
        num_spec_steps=steps,
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=drafted,
        num_spec_tokens=most,
    )


def metrics_of(requests: tuple[Statistics, ...], queue_seconds: float, most: int) -> Metrics:
    """queue_seconds: of all prompts. Times of several prompts, one after the other, are summed; the time to the first
    token is the first request's.
    """
    decoded = sum(row.total_seconds - row.first_token_seconds for row in requests)
    num_inter_token_gaps = sum(max(row.emitted - 1, 0) for row in requests)
    return Metrics(
        time_to_first_token_ms=1e3 * (queue_seconds + requests[0].first_token_seconds),
        queue_time_ms=1e3 * queue_seconds,
        generation_time_ms=1e3 * sum(row.total_seconds for row in requests),
        mean_itl_ms=1e3 * decoded / num_inter_token_gaps if num_inter_token_gaps else 0.0,
        speculative_decoding=speculative_decoding(requests, most),
    )
