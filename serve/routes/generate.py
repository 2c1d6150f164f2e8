"""Conversations and `/v1/completions`: from the body to the queue, and from rounds to the answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from ...errors import GrammarError
from ...runtime.grammar.grammar import Grammar
from ...runtime.grammar.thinking import Thinking
from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.text.chat_template import Variables
from ...runtime.text.encode import Prompt
from ..http.exchange import CLIENT_GONE, ClientGone, Exchange
from ..service import Service
from ..wire.body import Parsed, parse
from ..wire.calls import Calls, bounded, calls_of
from ..wire.constraints import grammar_of, relaxed
from ..wire.errors import as_sent, of_grammar
from ..wire.requests import ChatRequest, Common, CompletionRequest, Extension
from ..wire.translate import (
    chat_messages,
    check_scores,
    check_template,
    continued,
    ending,
    infill_of,
    parameters,
    prediction_text,
    prompts_of,
    reseeded,
    variables_of,
)
from .output import Output, Piece
from .shapes import ChatShape, Logprobs, Sent, Shape, TextShape, Whole
from .work import Work

IGNORED_HEADER = "x-specexport-ignored"
RELAXED_HEADER = "x-specexport-relaxed"
LONGEST_HEADER = 1000
LISTABLE = re.compile("[!-+\\--~]+")  # visible ASCII without a comma, which stands between names


async def chat(service: Service, exchange: Exchange) -> None:
    parsed = parse(ChatRequest, await exchange.body(), service.settings.strict_fields)
    await converse(service, exchange, parsed, ChatShape)


async def converse(
    service: Service, exchange: Exchange, parsed: Parsed[ChatRequest], shaped: Callable[[Work], Shape]
) -> None:
    """Answer a conversation, whichever API it came by. shaped: the form of the answer."""
    work = await _made(_conversation(service, exchange, parsed), exchange, parsed)
    await _answer(work, exchange, shaped(work))


async def _conversation(service: Service, exchange: Exchange, parsed: Parsed[ChatRequest]) -> Work:
    request = parsed.request
    variables, unread = variables_of(request, service.session, service.settings.strict_fields)
    unread = [parsed.sent_as.get(name, name) for name in unread]
    note_ignored(service, exchange, [*parsed.ignored, *unread, *_unknown_route(service, request)])
    service.check_model(request.model)
    check_template(service.session, bool(request.tools) and request.tool_choice != "none")
    if request.tools:  # off the event loop: there may be many long ones
        calls = await service.sessions.compilers.run(exchange.key, partial(calls_of, request, service.session))
    else:
        calls = calls_of(request, service.session)
    messages = chat_messages(request.messages, service.session, variables)
    return await _work(service, exchange.key, request, [messages], calls, variables)


async def completions(service: Service, exchange: Exchange) -> None:
    parsed = parse(CompletionRequest, await exchange.body(), service.settings.strict_fields)
    note_ignored(service, exchange, [*parsed.ignored, *_unknown_route(service, parsed.request)])
    service.check_model(parsed.request.model)
    making = _completion(service, exchange.key, parsed.request)
    work = await _made(making, exchange, parsed)
    await _answer(work, exchange, TextShape(work))


async def _completion(service: Service, key: str, request: CompletionRequest) -> Work:
    prompts, infill = prompts_of(request), infill_of(request, service.session)
    if infill is None:
        return await _work(service, key, request, prompts)
    join = partial(service.sessions.encode_infill, infill, after=str(request.suffix), key=key)
    work = await _work(service, key, request, [await join(str(prompt)) for prompt in prompts])
    own = service.session.bundle.manifest.text.stop_token_ids
    if request.stop_token_ids is None and not request.ignore_eos:
        work.parameters = [replace(one, stop_token_ids=(*own, *infill.stops)) for one in work.parameters]
    return work


async def _made(making: Awaitable[Work], exchange: Exchange, parsed: Parsed[Any]) -> Work:
    with as_sent(parsed.sent_as):
        work = await exchange.while_there(making)
    if work.relaxed:
        exchange.headers[RELAXED_HEADER] = _listed(work.relaxed)
    return work


async def _work(
    service: Service,
    key: str,
    request: ChatRequest | CompletionRequest,
    prompts: list[Prompt],
    calls: Calls | None = None,
    variables: Variables | None = None,
) -> Work:
    tools = () if calls is None else calls.tools
    of_template, thinking = variables, None
    if isinstance(request, ChatRequest):
        of_template = {**(variables or {}), **ending(request)}
    encoded = [await service.sessions.encode(prompt, tools, of_template, key=key) for prompt in prompts]
    if isinstance(request, ChatRequest):
        thinking = service.session.thinking(encoded[0], variables, bool(tools))
        if request.continue_final_message:
            thinking = continued(thinking, request.messages[-1])
    predicted = prediction_text(request)
    prediction = await service.sessions.encode_prediction(predicted, key=key) if predicted else []
    grammar, relaxed_schema = None, list[str]()
    if calls is None or calls.answers:
        grammar, relaxed_schema = await _grammar(service, key, request, thinking)
    else:  # what has no effect must be right too
        grammar_of(request, service.settings.allow_grammars)
    if calls is not None:
        calls, grammar = await _calls_grammar(service, key, request, calls, thinking, grammar)
        relaxed_schema += [calls.tools[place].name for place in sorted(calls.relaxed)]
    capacity = service.session.capacity
    check_scores(request, map(len, encoded))
    chosen = [parameters(request, service.settings, capacity, len(ids), grammar, prediction) for ids in encoded]
    if thinking is not None:  # markers that are special tokens would have no text otherwise
        chosen = [replace(one, shown=thinking.shown) for one in chosen]
    echoes: list[str] = []
    if isinstance(request, CompletionRequest) and request.echo:
        echoes = [await _echo(service, key, prompt, ids) for prompt, ids in zip(prompts, encoded, strict=True)]
    count = request.n or 1
    chosen = [reseeded(one, turn) for one in chosen for turn in range(count)]
    encoded, echoes = [one for one in encoded for _ in range(count)], [one for one in echoes for _ in range(count)]
    return Work(service, request, encoded, chosen, key, calls, thinking, relaxed_schema, echoes)


async def _echo(service: Service, key: str, prompt: Prompt, tokens: list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    decode = partial(service.session.tokenizer.decode, tokens, skip_special_tokens=False)
    return await service.sessions.encoders.run(key, decode)


async def _grammar(
    service: Service, key: str, request: ChatRequest | CompletionRequest, thinking: Thinking | None
) -> tuple[Grammar | None, list[str]]:
    """(compiled, so that errors in it are reported before it waits; the field of a schema that had to be relaxed)."""
    grammar = grammar_of(request, service.settings.allow_grammars)
    if grammar is None:
        return None, []
    loose, prepare = relaxed(request, grammar), service.session.prepare_grammar
    try:
        return await service.compile(partial(prepare, grammar.after(thinking)), key), []
    except GrammarError as error:
        if loose is None or error.code != "invalid_schema":
            raise of_grammar(error, request) from None
        refused = error
    try:
        return await service.compile(partial(prepare, loose.after(thinking)), key), ["response_format"]
    except GrammarError as error:  # it is no schema, or refers to what it does not hold
        raise of_grammar(refused if error.code == refused.code else error, request) from None


async def _calls_grammar(
    service: Service, key: str, request: Common, calls: Calls, thinking: Thinking | None, answer: Grammar | None
) -> tuple[Calls, Grammar | None]:
    """Compiled; tools without `strict` may be relaxed. answer: what an output may be instead of calls."""
    thoughts = thinking and replace(thinking, may_stop=not (calls.demanded or calls.answers))
    calls, grammar = await service.compile(partial(bounded, calls, service.session, thoughts), key)
    if grammar is None or answer is None:
        return calls, grammar
    either = grammar.otherwise(answer, calls.form.trigger)
    try:
        return calls, await service.compile(partial(service.session.prepare_grammar, either), key)
    except GrammarError as error:
        raise of_grammar(error, request) from None


async def _answer(work: Work, exchange: Exchange, shape: Shape) -> None:
    several = work.service.sessions.thread.several_jobs() if len(work.prompts) > 1 else nullcontext()
    with exchange.watched(work.leave), several:
        try:
            await (_stream if work.request.stream else _whole)(work, exchange, shape)
        finally:
            exchange.counted = work.counted
            exchange.notes.update(work.log_fields)
            if exchange.gone:
                exchange.notes["status"] = CLIENT_GONE


async def _whole(work: Work, exchange: Exchange, shape: Shape) -> None:
    choices = []
    for index in range(len(work.prompts)):
        if exchange.gone:  # between two prompts
            raise ClientGone
        with work.output(index) as output:
            await work.service.sessions.started(output.job)
            async with aclosing(output.pieces()) as pieces:
                rounds = [piece async for piece in pieces]
            if output.finish_reason == "abort":
                raise ClientGone
        entries = [entry for piece in rounds for entry in piece.entries]
        with_logprobs = work.parameters[index].logprobs is not None
        parts = [part for piece in rounds for part in piece.parts]
        choices.append(Whole.of(parts, entries if with_logprobs else None, output.finish_reason))

    def body() -> bytes:
        return msgspec.json.encode(shape.whole(choices, work.usage, work.metrics))

    scored = any(output.scored for output in work.outputs)  # thousands of entries: off the event loop
    await exchange.answer(200, await asyncio.to_thread(body) if scored else body())


async def _stream(work: Work, exchange: Exchange, shape: Shape) -> None:
    for index in range(len(work.prompts)):
        if exchange.gone:
            raise ClientGone
        with work.output(index) as output:
            await _stream_one(work, exchange, shape, index, output)
    if work.wants_usage:
        await _send(exchange, shape.usage(work.usage, work.metrics))
    if shape.done:
        await exchange.event(b"[DONE]")
    await exchange.end()


async def _stream_one(work: Work, exchange: Exchange, shape: Shape, index: int, output: Output) -> None:
    settings, started = work.service.settings, False
    if not exchange.begun:
        # The status waits, so that a refusal has a status of its own, which clients retry; but not for so long that a
        # proxy gives up. Who has it is answered, however long that takes.
        started = await work.service.sessions.started(output.job, settings.header_timeout)
        await exchange.begin_events()
        await exchange.events(shape.begin())
    while not (started or await output.job.started(settings.ping_interval)):
        await exchange.ping()
    with_logprobs, opened = work.parameters[index].logprobs is not None, False
    held: list[TokenLogprobs] = []  # for tokens that add nothing to the answer, such as markers
    async with aclosing(output.pieces(exchange.ping)) as pieces:
        async for piece in pieces:
            held += piece.entries
            if piece.parts or piece.drafts is not None:
                made = _chunks(shape, index, piece, held if with_logprobs else None, not opened)
                # An echo's thousands of entries: off the event loop.
                chunks = await asyncio.to_thread(list, made) if output.scored and not opened else made
                for chunk in chunks:
                    await _send(exchange, chunk)
                opened, held = True, []
            if exchange.silent_for > settings.ping_interval:  # rounds come, but with nothing to report yet
                await exchange.ping()
    if output.finish_reason == "abort":
        raise ClientGone
    if not opened and (opening := await asyncio.to_thread(shape.start, index, "")) is not None:
        await _send(exchange, opening)
    await _send(exchange, shape.finish(index, output.finish_reason, held or None))


async def _send(exchange: Exchange, made: Sent) -> None:
    await (exchange.events(made) if isinstance(made, bytes) else exchange.event(msgspec.json.encode(made)))


def _chunks(shape: Shape, index: int, piece: Piece, logprobs: Logprobs, first: bool) -> Iterator[Sent]:
    """One for each part; other fields come with the first one. first: the choice is still to be opened, as its first
    part tells whether it has content.
    """
    drafts = piece.drafts
    for part in piece.parts or [""]:
        opening = shape.start(index, part) if first else None
        if opening is not None:
            yield opening
        yield shape.piece(index, part, logprobs, drafts)
        logprobs, drafts, first = logprobs and [], None, False


def _unknown_route(service: Service, request: ChatRequest | CompletionRequest) -> list[str]:
    """The field's name where the request names a route that no policy has, so that it has no effect."""
    policy, route = service.session.decisions.policy, (request.specexport or Extension()).route
    return ["specexport.route"] if route is not None and (policy is None or route not in policy.routes) else []


def note_ignored(service: Service, exchange: Exchange, ignored: list[str]) -> None:
    if ignored:
        service.metrics.ignored(len(ignored))
        exchange.headers[IGNORED_HEADER] = exchange.notes["ignored"] = _listed(ignored)


def _listed(names: list[str]) -> str:
    """As many names as a header holds, never part of one. What a header cannot hold is counted only."""
    listed = ""
    for name in filter(LISTABLE.fullmatch, names):
        longer = f"{listed}, {name}" if listed else name
        listed = longer if len(longer) <= LONGEST_HEADER else listed
    return listed
