"""A session for asyncio: requests wait in a fair queue, and a thread of its own runs them one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from ...errors import LongPromptError, QueueError
from ...runtime.grammar.grammar import Grammar
from ...runtime.loop.chunks import Chunk
from ...runtime.sampling.options import instance
from ...runtime.sampling.parameters import SamplingParameters, with_overrides
from ...runtime.session import Session
from ...runtime.stream import Generation
from ...runtime.text.chat_template import Variables
from ...runtime.text.encode import Prompt
from ...runtime.text.infill import Infill
from ...runtime.tools.tool import Tool
from .. import checks
from ..settings import QUEUE_TIMEOUT
from .fair_queue import Workers
from .job import Job
from .thread import EngineThread

ENCODERS = 2  # threads; the tokenizer releases the interpreter's lock
COMPILERS = 4  # one compiles at a time, but known grammars do not wait for the others


class AsyncSession:
    """A fair queue in front of a session: tasks of any event loop may send requests, which are served one at a time.

    max_queue: requests that may wait. max_queue_per_key: the same for one key; None for no separate limit.
    queue_timeout: seconds after which a waiting request is refused; one that is not expected to start by then is
    refused at once. The default is how long openai's clients wait. grammar_timeout: total seconds that a request's
    grammar may take to compute which tokens may follow; beyond that the request ends with a `GrammarError`.

    A request ends when its iteration is left or its task is cancelled: at once while it waits, else at the next prompt
    chunk or round. Other requests are not affected. Nothing else may use `session` meanwhile, except its `encode`.
    Installs no signal handlers and opens no sockets; its thread starts with `prepare` or the first request. Raises
    `ParameterError`.
    """

    def __init__(
        self,
        session: Session,
        max_queue: int = 16,
        max_queue_per_key: int | None = None,
        queue_timeout: float = QUEUE_TIMEOUT,
        grammar_timeout: float = 10.0,
        keys_are: str = "key",
    ) -> None:
        """keys_are: what `key` stands for in the message of a refusal."""
        self.session = instance("session", session, Session)
        self.queue_timeout = checks.seconds("queue_timeout", queue_timeout)
        grammar_timeout = checks.seconds("grammar_timeout", grammar_timeout)
        max_queue = checks.count("max_queue", max_queue)
        most_per_key = max_queue if max_queue_per_key is None else checks.count("max_queue_per_key", max_queue_per_key)
        self.thread = EngineThread(session, max_queue, most_per_key, grammar_timeout, keys_are)
        bounds = (2 * max_queue, 2 * most_per_key, keys_are)  # more than the queue, however fast they come
        self.encoders = Workers("specexport-encode", ENCODERS, *bounds)
        self.compilers = Workers("specexport-compile", COMPILERS, *bounds)
        self.longest_token: int | None = None  # in bytes of text, if known: what cannot fit is not tokenized

    def prepare(self) -> None:
        """`Session.prepare`, in the thread that will run the requests, since some graphs are captured for one thread.

        Blocks. Call it before the first request; later it does nothing. Raises `SessionClosedError`.
        """
        self.thread.prepare()

    async def encode(
        self, prompt: Prompt, tools: Sequence[Tool] = (), variables: Variables | None = None, *, key: str = ""
    ) -> list[int]:
        """Token ids, as from `Session.encode`, without blocking the event loop. Also raises `QueueError`.

        key: whose request it is. Keys take turns; twice as many calls may wait as requests in the queue.
        """
        if self.longest_token is not None:
            _refuse_what_cannot_fit(prompt, self.longest_token, self.session.capacity)
        return await self.encoders.run(key, partial(self.session.encode, prompt, tools, variables))

    async def encode_infill(self, infill: Infill, before: str, after: str, *, key: str = "") -> list[int]:
        """Like `Infill.encode`, with turns as in `encode`."""
        if self.longest_token is not None:
            _refuse_what_cannot_fit(before + after, self.longest_token, self.session.capacity)
        return await self.encoders.run(key, partial(infill.encode, before, after))

    async def encode_prediction(self, prediction: str, *, key: str = "") -> list[int]:
        """Like `Session.encode_prediction`, with turns as in `encode`."""
        return await self.encoders.run(key, partial(self.session.encode_prediction, prediction))

    async def prepare_grammar(self, grammar: Grammar, *, key: str = "") -> Grammar | None:
        """Like `Session.prepare_grammar`, with turns as in `encode`."""
        return await self.compilers.run(key, partial(self.session.prepare_grammar, grammar))

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParameters | None = None,
        *,
        key: str = "",
        again: bool = False,
        **overrides: Any,
    ) -> Job:
        """Put a request into the queue. Raises `QueueError`, `ParameterError`.

        key: whose request it is; keys are served in turn, and share no cached rows. again: whether it continues a
        request that was served, such as the second prompt of a list: it waits for its turn, but a full queue does not
        refuse it.
        """
        parameters = with_overrides(params, overrides)
        if key:  # else the time to the first token would reveal what others sent
            parameters = replace(parameters, cache_salt=_salt(key, parameters.cache_salt))
        job = Job(key, prompt, parameters, self.thread.withdraw)
        self.thread.submit(job, again, self.queue_timeout)
        return job

    async def started(self, job: Job, timeout: float | None = None) -> bool:
        """Whether the engine started `job` within `timeout` seconds. Raises the error if it was refused, and
        `QueueError` once it has waited for `queue_timeout`.
        """
        left = self.queue_timeout - job.waited
        if timeout is not None and timeout < left:
            return await job.started(timeout)
        if await job.started(max(left, 0.0)):
            return True
        wait = self.thread.retry_after(job)
        reason = f"the request waited {self.queue_timeout:g} s for its turn; retry in {wait} s"
        job.expire(QueueError("queue_timeout", reason, wait))
        return await job.started()

    async def stream(
        self, prompt: Prompt, params: SamplingParameters | None = None, *, key: str = "", **overrides: Any
    ) -> AsyncGenerator[Chunk, None]:
        """An iterator with one `Chunk` per round, as from `Session.stream`; key as of `submit`.

        Close it if you leave it before its end (`contextlib.aclosing`). Raises what `Session.stream` raises, and
        `QueueError`.
        """
        ids = await self.encode(prompt, key=key)
        job = self.submit(ids, params, key=key, **overrides)
        try:
            await self.started(job)
            async with aclosing(job.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            job.leave()

    async def generate(
        self, prompt: Prompt, params: SamplingParameters | None = None, *, key: str = "", **overrides: Any
    ) -> Generation:
        """Run a request to its end, as `Session.generate`; raises what `stream` raises."""
        async with aclosing(self.stream(prompt, params, key=key, **overrides)) as stream:
            chunks = [chunk async for chunk in stream]
        return Generation.of(chunks)

    async def drain(self, timeout: float | None = None) -> bool:
        """Accept no new requests, wait for the open ones, and cancel those left after `timeout` seconds.

        Returns whether all of them completed.
        """
        self.thread.drain()
        done = await asyncio.to_thread(partial(self.thread.wait_idle, timeout))
        if not done:
            self.thread.cancel_all(
                QueueError("shutting_down", "the answer was not complete at the shutdown; send the request again", 1)
            )
            await asyncio.to_thread(self.thread.wait_idle)
        return done

    async def close(self) -> None:
        """Cancel all requests and end the thread; the session itself stays open."""
        await self.drain(0.0)
        self.encoders.close()
        self.compilers.close()
        await asyncio.to_thread(self.thread.stop)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _refuse_what_cannot_fit(prompt: Prompt, longest_token: int, capacity: int) -> None:
    """Tokenizing it would take a worker seconds, in which others wait. Raises `LongPromptError`.

    Of answers, templates may leave out the thoughts.
    """
    parts = [prompt] if isinstance(prompt, str) else prompt if isinstance(prompt, list) else []
    messages = [part for part in parts if isinstance(part, Mapping) and part.get("role") != "assistant"]
    texts = [*(message.get("content") for message in messages), *parts]
    tokens = sum(len(text) for text in texts if isinstance(text, str)) // longest_token
    if tokens >= capacity:
        field = "prompt" if isinstance(prompt, str) else "messages"
        raise LongPromptError(
            f"the {field} has at least {tokens} tokens, the bundle's capacity is {capacity}",
            field,
            tokens=tokens,
            capacity=capacity,
        )


def _salt(key: str, salt: str | None) -> str:
    """A distinct text for every pair: the quotes show where each of the two ends."""
    return sha256(ascii((key, salt)).encode()).hexdigest()
