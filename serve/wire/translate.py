"""From a request's struct to the input of a session: prompts, template variables, and `SamplingParameters`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from ...runtime.grammar.grammar import Grammar
from ...runtime.grammar.thinking import Thinking
from ...runtime.sampling.parameters import SEEDS, SamplingParameters
from ...runtime.session import Session
from ...runtime.text.chat_template import ADD, CONTINUE, Variables, is_reserved
from ...runtime.text.encode import Prompt
from ...runtime.text.infill import Infill
from ..settings import ServerSettings
from .errors import ApiError, invalid, unsupported
from .requests import ChatRequest, Common, CompletionRequest, Extension, Message, Part, TokenizeRequest
from .tools import History

MAX_PROMPTS = 64
MAX_SCORES = 1 << 20  # log-probabilities, with 400 bytes each
PARAMETERS = {one.name for one in fields(SamplingParameters)}
FIELD, EFFORT = "chat_template_kwargs", "reasoning_effort"


def chat_messages(
    messages: Sequence[Message], session: Session, variables: Variables | None = None
) -> list[dict[str, Any]]:
    """In the runtime's form. variables: of the template. Raises `ApiError` for what cannot be rendered."""
    rendered: list[dict[str, Any]] = []
    history = History(session)
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        made: dict[str, Any] = {"role": message.role}
        said = [one for one in (message.content, message.refusal) if one is not None]
        thoughts = message.reasoning_content or message.reasoning
        # A stream that ends within the thoughts leaves no content.
        if not said and not message.tool_calls and not (thoughts and message.role == "assistant"):
            raise invalid(f"{where}.content", f"{where}.content is null; give a text or a list of text parts")
        made["content"] = "\n".join(filter(None, (flat(one, f"{where}.content") for one in said)))
        if message.name is not None:
            made["name"] = message.name
        if message.tool_calls:
            made["tool_calls"] = history.calls(message, where)
        if thoughts and message.role == "assistant":
            thinking = session.thinking((), variables)
            made |= {thinking.key: thoughts} if thinking is not None and thinking.key else {}
        if message.role == "tool":
            made |= history.result(message, where)
        rendered.append(made)
    return rendered


def ending(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """What follows the messages, as variables of `Session.encode`. Raises `ApiError`."""
    if request.continue_final_message and request.add_generation_prompt:
        reason = f"Cannot set both `{CONTINUE}` and `{ADD}` to True."  # in vLLM's words
        raise invalid(CONTINUE, reason)
    asked = {ADD: request.add_generation_prompt, CONTINUE: request.continue_final_message}
    return {name: value for name, value in asked.items() if value is not None}


def continued(thinking: Thinking | None, message: Message) -> Thinking | None:
    """How the model thinks on after an assistant's message that is left open: only where that ends within thoughts."""
    text = flat(message.content or "", "messages[].content")
    if thinking is None or not text:
        return thinking
    _, opened, thoughts = text.rpartition(thinking.opening)
    return replace(thinking, begun=True) if opened and thinking.end not in thoughts else None


def check_template(session: Session, tools: bool) -> None:
    """Raises `ApiError` for messages to a model without a chat template. tools: whether there are some."""
    if not (session.chats_with_tools if tools else session.chats):
        only = " for messages without tools" if session.chats_with_tools else ""
        raise unsupported("messages", f"this model has no chat template{only}; use /v1/completions")


def flat(content: str | Sequence[Part], where: str) -> str:
    """A text or text parts as one text. Only text is accepted, so nothing is ever fetched."""
    if isinstance(content, str):
        return content
    texts = []
    for place, part in enumerate(content):
        if part.type not in ("text", "refusal"):
            raise unsupported(f"{where}[{place}].type", f"parts of type {part.type[:64]!r}; this model reads text only")
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            field = f"{where}[{place}].{part.type}"
            raise invalid(field, f"{field} is missing; expected a text")
        texts.append(text)
    return "\n".join(texts)


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """One to 64 prompts. Raises `ApiError`."""
    items = request.prompt
    if isinstance(items, str):
        return [items]
    ids = [item for item in items if isinstance(item, int)]
    if ids and len(ids) == len(items):
        return [ids]
    if not items or ids:
        reason = "prompt mixes texts and token ids, or is empty; give a text, token ids, or a list of either"
        raise invalid("prompt", reason)
    if len(items) > MAX_PROMPTS:
        raise invalid("prompt", f"prompt holds {len(items)} prompts; give at most {MAX_PROMPTS}")
    if len(items) * (request.n or 1) > MAX_PROMPTS:
        raise invalid("n", f"n is {request.n} for {len(items)} prompts; a request has at most {MAX_PROMPTS} answers")
    return [item for item in items if not isinstance(item, int)]


def infill_of(request: CompletionRequest, session: Session) -> Infill | None:
    """How its prompts and the suffix are joined; None without a suffix. Raises `ApiError`."""
    if not request.suffix:
        return None
    if session.infill is None:
        raise unsupported("suffix", "this model's tokenizer has no tokens for a gap; give the text before it alone")
    if request.echo or not all(isinstance(prompt, str) for prompt in prompts_of(request)):
        raise invalid("suffix", "suffix is sent with echo or token ids; give prompts as texts, which are not echoed")
    return session.infill


def prediction_text(request: Common) -> str:
    """Empty for none. Raises `ApiError`."""
    return "" if request.prediction is None else flat(request.prediction.content, "prediction.content")


def parameters(
    request: Common,
    settings: ServerSettings,
    capacity: int,
    prompt_tokens: int,
    grammar: Grammar | None,
    prediction: Sequence[int] = (),
) -> SamplingParameters:
    """capacity: of a sequence, in tokens. prediction: token ids. Raises `ParameterError`, `ApiError`."""
    extension = request.specexport or Extension()
    default = 16 if isinstance(request, CompletionRequest) else capacity  # as in the OpenAI API
    scored = prompt_likeliest(request)
    limit = getattr(request, "max_completion_tokens", None)
    limit = next((one for one in (limit, request.max_tokens) if one is not None), default)
    remaining_tokens = capacity - prompt_tokens
    most = max(min(limit, 1), min(limit, settings.max_tokens or remaining_tokens, remaining_tokens))
    if request.min_tokens is not None and 0 <= limit < request.min_tokens:
        reason = f"min_tokens is {request.min_tokens}; it must be at most max_tokens, {limit}"
        raise invalid("min_tokens", reason)
    temperature = settings.default_temperature if request.temperature is None else request.temperature
    parts = (request, extension)
    values: dict[str, Any] = {
        **{name: getattr(part, name) for part in parts for name in part.__struct_fields__ if name in PARAMETERS},
        # those that are not just what the field of that name says
        "temperature": 0.0 if request.top_p == 0 else temperature,  # the likeliest token alone
        "top_p": request.top_p or None,
        "top_k": None if request.top_k is None else max(request.top_k, 0),  # vLLM's -1 means off as well
        "stop_token_ids": () if request.stop_token_ids is None and request.ignore_eos else request.stop_token_ids,
        "min_new_tokens": None if request.min_tokens is None else min(request.min_tokens, max(most, 0)),
        "logit_bias": None if request.logit_bias is None else _biases(request.logit_bias),
        "seed": None if request.seed is None else request.seed % SEEDS,
        "drafter": settings.drafter if extension.drafter is None else extension.drafter,
        "speculate": extension.speculate if most else False,
        "prediction": prediction or None,
        "grammar": grammar,
        "logprobs": likeliest(request),
        "prompt_logprobs": scored,
    }
    chosen = {name: value for name, value in values.items() if value is not None}
    return SamplingParameters(max_new_tokens=most, **chosen)


def reseeded(parameters: SamplingParameters, turn: int) -> SamplingParameters:
    """Of the answer `turn` to one prompt, from 0: its seed is as much larger."""
    seed = parameters.seed
    return parameters if seed is None else replace(parameters, seed=(seed + turn) % SEEDS)


def likeliest(request: Common) -> int | None:
    """How many alternatives each token is to have, None for no log-probabilities. Raises `ApiError`."""
    if isinstance(request, CompletionRequest):
        return None if request.logprobs is None or request.logprobs is False else request.logprobs
    assert isinstance(request, ChatRequest)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    return (request.top_logprobs or 0) if request.logprobs else None


def prompt_likeliest(request: Common) -> int | None:
    """The same of each token of the prompt. Raises `ApiError`."""
    asked = [request.prompt_logprobs]
    if isinstance(request, CompletionRequest) and request.echo:
        asked += [likeliest(request), 0 if request.max_tokens == 0 else None]  # without a token nothing else is run
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs", "prompt_logprobs is sent with stream: true; whole answers alone have them")
    return max((one for one in asked if one is not None), default=None)


def check_scores(request: Common, prompt_tokens: Iterable[int]) -> None:
    """prompt_tokens: of each prompt. Raises `ApiError` if the scores of all answers would take too much memory."""
    count = prompt_likeliest(request)
    if count is not None and (size := sum(prompt_tokens) * (request.n or 1) * (count + 1)) > MAX_SCORES:
        field = "prompt" if isinstance(request, CompletionRequest) else "prompt_logprobs"
        reason = f"{size} log-probabilities of prompts are asked for; at most {MAX_SCORES} fit in an answer"
        raise invalid(field, f"{reason}; send fewer prompts, or ask for fewer of the likeliest")


def _biases(biases: dict[str, float]) -> dict[int, float]:
    for token in biases:
        if not (token.isascii() and token.isdigit() and len(token) < 12):
            raise invalid("logit_bias", f"logit_bias names {token[:32]!r}; its keys are token ids")
    return {int(token): bias for token, bias in biases.items()}


def variables_of(
    request: ChatRequest | TokenizeRequest, session: Session, strict: bool
) -> tuple[dict[str, Any], list[str]]:
    """(variables that the template reads, names of fields that it does not read).

    Raises `ApiError` for a variable that requests may not set; with `strict` for one that the template does not read.
    """
    variables: dict[str, Any] = dict(request.chat_template_kwargs or {})
    reserved = next(filter(is_reserved, variables), None)
    if reserved is not None:
        where = f"{FIELD}.{reserved}"
        raise invalid(where, f"{where} cannot be set by requests: it comes from messages, tools and the model")
    names = {name: f"{FIELD}.{name}" for name in variables}
    if request.reasoning_effort is not None and EFFORT not in variables:
        variables[EFFORT], names[EFFORT] = request.reasoning_effort, EFFORT
    read = session.template_variables
    unread = [names[name] for name in variables if name not in read]
    if unread and strict:
        raise ApiError("unknown_parameter", f"{unread[0]!r} is not read by the chat template", unread[0])
    return {name: value for name, value in variables.items() if name in read}, unread
