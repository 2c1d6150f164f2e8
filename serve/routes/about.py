"""The paths for information: models, tokens, health, metrics, the API's own description."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ...runtime.text.encode import Prompt
from ...runtime.tools.tool import Tool
from ...version import VERSION
from ..http.exchange import Exchange
from ..metrics import TEXT
from ..service import Service
from ..wire.answers import Detokenized, ModelList, Tokenized
from ..wire.body import parse
from ..wire.errors import ApiError, invalid
from ..wire.requests import ChatRequest, DetokenizeRequest, TokenizeRequest
from ..wire.tools import form_of, offered
from ..wire.translate import chat_messages, check_template, ending, variables_of

encode = msgspec.json.encode


async def models(service: Service, exchange: Exchange) -> None:
    await exchange.answer(200, encode(ModelList(data=service.models)))


async def model(service: Service, exchange: Exchange) -> None:
    name = exchange.scope["path_params"]["name"]
    if not name:  # a list is expected at /v1/models
        raise ApiError("not_found", "there is nothing at '/v1/models/'; use /v1/models")
    service.check_model(name)
    await exchange.answer(200, encode(next((one for one in service.models if one.id == name), service.models[0])))


async def tokenize(service: Service, exchange: Exchange) -> None:
    request = parse(TokenizeRequest, await exchange.body(), service.settings.strict_fields).request
    service.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("prompt", "give either prompt or messages")
    of_messages = ("tools", "chat_template_kwargs", "reasoning_effort", "continue_final_message")
    without = next((name for name in of_messages if request.messages is None and getattr(request, name)), None)
    if without is not None:
        raise invalid(without, f"{without} is of messages, and there is a prompt; give messages, or leave it out")
    if request.messages is not None:
        tokens = await tokens_of(service, exchange, request)
    else:
        tokens = await _encoded(service, exchange, str(request.prompt)) if request.prompt else []
    texts = [service.texts.text_of(token) for token in tokens] if request.return_token_strs else None
    await exchange.answer(200, encode(Tokenized(tokens, len(tokens), service.session.capacity, texts)))


async def tokens_of(service: Service, exchange: Exchange, request: TokenizeRequest | ChatRequest) -> list[int]:
    """The prompt for its messages. Raises `ApiError`."""
    service.check_model(request.model)
    tools: list[Tool] = []
    if request.tools and getattr(request, "tool_choice", None) != "none":  # off the event loop: there may be many
        made = service.sessions.encoders.run(exchange.key, partial(offered, request.tools))
        tools = await exchange.while_there(made)
    check_template(service.session, bool(tools))
    variables, _ = variables_of(request, service.session, service.settings.strict_fields)
    messages = chat_messages(request.messages or (), service.session, variables)
    if tools:
        form_of(service.session, "tools")
    return await _encoded(service, exchange, messages, tools, variables | ending(request))


async def _encoded(service: Service, exchange: Exchange, prompt: Prompt, *of_template: Any) -> list[int]:
    return await exchange.while_there(service.sessions.encode(prompt, *of_template, key=exchange.key))


async def detokenize(service: Service, exchange: Exchange) -> None:
    request = parse(DetokenizeRequest, await exchange.body(), service.settings.strict_fields).request
    service.check_model(request.model)
    size = service.session.bundle.manifest.target.vocab_size
    wrong = next((token for token in request.tokens if token >= size), None)
    if wrong is not None:
        raise invalid("tokens", f"tokens holds {wrong}; ids go from 0 to {size - 1}")
    text = service.session.tokenizer.decode(request.tokens, skip_special_tokens=False)
    await exchange.answer(200, encode(Detokenized(text)))


async def health(service: Service, exchange: Exchange) -> None:
    """Liveness: a supervisor restarts a server that returns 503 here."""
    if (trouble := service.trouble) is not None:
        raise ApiError("engine_stuck", trouble)
    await exchange.answer(200, b'{"status":"ok"}')


async def ready(service: Service, exchange: Exchange) -> None:
    """Readiness: whether new requests are accepted; for load balancers."""
    if service.sessions.thread.draining:
        raise ApiError(
            "shutting_down", "this server is shutting down and takes no new requests; send them to another one"
        )
    if (trouble := service.trouble) is not None:
        raise ApiError("engine_stuck", trouble)
    await exchange.answer(200, b'{"status":"ready"}')


async def version(service: Service, exchange: Exchange) -> None:
    await exchange.answer(200, encode({"version": VERSION}))


async def metrics(service: Service, exchange: Exchange) -> None:
    await exchange.answer(200, service.metrics.exposition(), {"content-type": TEXT})


async def openapi(service: Service, exchange: Exchange) -> None:
    await exchange.answer(200, service.openapi)
