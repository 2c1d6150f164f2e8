"""From a request's struct to the input of a session: prompts, template variables, and `SamplingParameters`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...runtime.grammar.grammar import Grammar
from ...runtime.sampling.parameters import SEEDS, SamplingParameters
from ...runtime.session import Session
from ...runtime.text.chat_template import Variables, is_own
from ...runtime.text.encode import Prompt
from ...runtime.text.thinking import KEYS
from ...runtime.tools.tool import Tool
from ..settings import ServerSettings
from .errors import ApiError, invalid, too_long, unsupported
from .requests import ChatRequest, Common, CompletionRequest, Extension, Message, Part, TokenizeRequest
from .tools import History

MAX_PROMPTS = 64
FIELD, EFFORT = "chat_template_kwargs", "reasoning_effort"


@dataclass(frozen=True)
class Limits:
    """Limits of the bundle. longest_token: in bytes of text; a text of more than capacity times that cannot fit."""

    capacity: int
    longest_token: int

    @property
    def longest_text(self) -> int:
        return self.capacity * self.longest_token


def chat_messages(
    messages: Sequence[Message], session: Session, variables: Variables | None = None
) -> list[dict[str, Any]]:
    """In the runtime's form. variables: of the template. Raises `ApiError` for what cannot be rendered."""
    found: list[dict[str, Any]] = []
    history = History(session)
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        made: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
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
        found.append(made)
    return found


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


def prompts(request: CompletionRequest) -> list[Prompt]:
    """One to 64 prompts. Raises `ApiError`."""
    given = request.prompt
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return [ids]
    if not given or ids:
        raise invalid(
            "prompt", "prompt mixes texts and token ids, or is empty; give a text, token ids, or a list of either"
        )
    if len(given) > MAX_PROMPTS:
        raise invalid("prompt", f"prompt holds {len(given)} prompts; give at most {MAX_PROMPTS}")
    return [item for item in given if not isinstance(item, int)]


def check_size(prompt: Prompt, limits: Limits, tools: Sequence[Tool] = ()) -> None:
    """Refuses what cannot fit before anything is tokenized. Raises `ApiError`."""
    size = 0
    for one in _rendered(prompt, tools):
        size += one
        if size > limits.longest_text:
            break  # the rest is skipped
    if size > limits.longest_text:
        field = "prompt" if isinstance(prompt, str) else "messages"
        told = f"{size} bytes or more, and no text of more than {limits.longest_text} can fit"
        raise too_long(field, told, limits.capacity)


def _rendered(prompt: Prompt, tools: Sequence[Tool]) -> Iterator[int]:
    """Bytes of everything that a template writes: never more than it does write, apart from structure."""
    if isinstance(prompt, str):
        yield len(prompt.encode())
        return
    for message in prompt:
        if isinstance(message, dict):  # otherwise a token
            yield from _sizes(message["content"])
            for name in ("name", *KEYS):
                yield from _sizes(message.get(name, ""))
            for call in message.get("tool_calls", ()):
                yield from _sizes(call["function"]["name"])
                yield from _sizes(call["function"]["arguments"])
    for tool in tools:
        yield from _sizes(tool.name)
        yield from _sizes(tool.description or "")
        yield from _sizes(tool.parameters or {})


def _sizes(value: Any) -> Iterator[int]:
    """Bytes of each text and bracket of JSON, one for a number. A loop, so that deep values do not overflow the
    stack.
    """
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield len(value.encode())
        elif isinstance(value, Mapping):
            left += [*value, *value.values()]
            yield len("{}")
        elif isinstance(value, list):
            left += value
            yield len("[]")
        else:
            yield 1


def prediction_text(request: Common, limits: Limits) -> str:
    """At most as much of it as a sequence can hold; empty for none. Raises `ApiError`."""
    if request.prediction is None:
        return ""
    return flat(request.prediction.content, "prediction.content")[: limits.longest_text]


def parameters(
    request: Common,
    settings: ServerSettings,
    limits: Limits,
    prompt_tokens: int,
    grammar: Grammar | None,
    prediction: Sequence[int] = (),
) -> SamplingParameters:
    """prediction: token ids. Raises `ParameterError`, `ApiError`."""
    extension = request.specexport or Extension()
    asked = getattr(request, "max_completion_tokens", None) or request.max_tokens
    default = 16 if isinstance(request, CompletionRequest) else limits.capacity  # as in the OpenAI API
    room = limits.capacity - prompt_tokens
    most = max(1, min(asked or default, settings.max_tokens or room, room))
    given: dict[str, Any] = {
        "top_p": request.top_p or None,
        "top_k": None if request.top_k is None else max(request.top_k, 0),  # vLLM's -1 means off as well
        "min_p": request.min_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "repetition_penalty": request.repetition_penalty,
        "stop": request.stop,
        "stop_token_ids": () if request.stop_token_ids is None and request.ignore_eos else request.stop_token_ids,
        "min_new_tokens": None if request.min_tokens is None else min(request.min_tokens, most),
        "logit_bias": None if request.logit_bias is None else _biases(request.logit_bias),
        "seed": None if request.seed is None else request.seed % SEEDS,
        "route": extension.route,
        "drafter": settings.drafter if extension.drafter is None else extension.drafter,
        "num_draft_tokens": extension.num_draft_tokens,
        "speculate": extension.speculate,
        "banned_tokens": extension.banned_tokens,
        "prediction": prediction or None,
        "cache_salt": request.cache_salt,
        "grammar": grammar,
        "logprobs": likeliest(request),
    }
    temperature = settings.default_temperature if request.temperature is None else request.temperature
    if request.top_p == 0:  # the likeliest token alone
        temperature = 0.0
    chosen = {name: value for name, value in given.items() if value is not None}
    return SamplingParameters(max_new_tokens=most, temperature=temperature, **chosen)


def likeliest(request: Common) -> int | None:
    """How many alternatives each token is to have, None for no log-probabilities. Raises `ApiError`."""
    if isinstance(request, CompletionRequest):
        return None if request.logprobs is None or request.logprobs is False else request.logprobs
    assert isinstance(request, ChatRequest)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    return (request.top_logprobs or 0) if request.logprobs else None


def _biases(given: dict[str, float]) -> dict[int, float]:
    whole: Callable[[str], bool] = lambda text: text.isascii() and text.isdigit() and len(text) < 12  # noqa: E731
    wrong = next((token for token in given if not whole(token)), None)
    if wrong is not None:
        raise invalid("logit_bias", f"logit_bias names {wrong[:32]!r}; its keys are token ids")
    return {int(token): bias for token, bias in given.items()}


def variables_of(
    request: ChatRequest | TokenizeRequest, session: Session, strict: bool
) -> tuple[dict[str, Any], list[str]]:
    """(variables that the template reads, names of fields that it does not read).

    Raises `ApiError` for a variable that requests may not set; with `strict` for one that the template does not read.
    """
    given: dict[str, Any] = dict(request.chat_template_kwargs or {})
    own = next(filter(is_own, given), None)
    if own is not None:
        where = f"{FIELD}.{own}"
        raise invalid(where, f"{where} cannot be set by requests: it comes from messages, tools and the model")
    names = {name: f"{FIELD}.{name}" for name in given}
    if request.reasoning_effort is not None and EFFORT not in given:
        given[EFFORT], names[EFFORT] = request.reasoning_effort, EFFORT
    read = session.template_variables
    unread = [names[name] for name in given if name not in read]
    if unread and strict:
        raise ApiError(400, "unknown_parameter", f"{unread[0]!r} is not read by the chat template", unread[0])
    return {name: value for name, value in given.items() if name in read}, unread
