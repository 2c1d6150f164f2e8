"""A loaded bundle: one sequence at a time, streamed or whole, speculative or plain."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import RLock
from time import perf_counter
from typing import Any

from ..bundle import Bundle
from ..engines.base import Engine
from ..errors import SessionBusyError, SessionClosedError, SpecExportError
from .costs.first import first_costs
from .drafting.drafts import Drafts
from .drafting.ngram_cache import NgramCache
from .grammar.compiler import GrammarCompiler
from .grammar.grammar import Grammar
from .grammar.thinking import Thinking
from .loop.chunks import Decoding
from .policy.cost_model import Costs
from .policy.decisions import Decisions
from .policy.schedule import Schedule
from .request import make_request
from .sampling.options import OutputGrammar, Whole, instance
from .sampling.parameters import SamplingParameters, with_overrides
from .signature import takes
from .state.cached_decoder import Cancellation
from .state.prompt_cache import PromptCache
from .state.statistics import Statistics
from .stream import Generation, Stream, holds
from .text.chat_template import Variables
from .text.encode import Prompt, PromptEncoder
from .text.infill import Infill
from .tools.tool import Tool
from .tools.tool_format import ToolFormat

LOG = logging.getLogger("specexport")


class Session:
    """A loaded bundle, which holds one sequence at a time in its caches; made by `specexport.load`.

    Any thread may send requests, but only one request may be open: others raise `SessionBusyError`. The caches outlive
    a request: the next one reuses the rows of the prefix that both share. After `close`, or the end of a `with`, calls
    raise `SessionClosedError`.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        threads: int = 0,
        policy: bool = True,
        prompt_cache_bytes: int = 0,
        encoder: PromptEncoder | None = None,
    ) -> None:
        self.bundle = bundle
        self.engine = engine
        self.threads = threads
        self._encoder = encoder or PromptEncoder(bundle)
        self.tokenizer = self._encoder.tokenizer
        self._grammars = GrammarCompiler.of(bundle, self.tokenizer.to_str)
        # Held by the thread that is inside a call which runs passes, or which changes `_stream` or the context. It is
        # held only briefly, and it tells a signal handler that its own thread is inside such a call, for which it must
        # not wait.
        self._running = RLock()
        self.drafts = Drafts(bundle, engine, self._running)
        self._context = self.drafts.context
        self.decisions = Decisions.load(self.drafts, threads) if policy else Decisions(first_draft=self.drafts.first)
        contract, models = bundle.manifest.contract, bundle.manifest.pair.values()
        if prompt_cache_bytes:
            sizes = [(model.row_bytes(contract), model.state_bytes(contract)) for model in models]
            self._context.prompt_cache = PromptCache(prompt_cache_bytes, *zip(*sizes, strict=True))
        self._decoding = Decoding(bundle, engine, self.tokenizer, self._context)
        self.answers = NgramCache()  # of its requests, for lookups
        self._stream: weakref.ref[Stream] | None = None  # the newest
        self._cancels = 0  # calls of `cancel`: it also ends a request that waits for costs, or for a draft to be opened
        self._closed = False  # no request is accepted after
        self._released = False  # the engine was released

    def adapt(self) -> None:
        """Draft as much as pays here, wherever the bundle was calibrated, if at all: the costs of rounds are those of
        this host in its costs.json or in the user's cache, or measured in about half a second, when a request first
        needs them, or at `prepare`.
        """
        measure = weakref.WeakMethod(self._measure)  # else the session would hold a reference to itself
        self.decisions.looks_up = self.engine.rounds is None  # which the device runs only for a draft alone
        self.decisions.measure = lambda draft: method(draft) if (method := measure()) else None

    def _measure(self, draft: str) -> Costs | None:
        with self._running:
            return first_costs(self, draft)

    @property
    def capacity(self) -> int:
        """The longest sequence in tokens, prompt included."""
        return self.bundle.manifest.longest

    @property
    def max_draft_tokens(self) -> int:
        return self.bundle.manifest.contract.max_draft_tokens

    @property
    def cache_usage(self) -> float:
        """The fraction of the target's cache rows that are in use, 0 to 1. From any thread, even while a request
        runs.
        """
        return self._context.target.rows / self.bundle.manifest.contract.capacity

    def encode(self, prompt: Prompt, tools: Sequence[Tool] = (), variables: Variables | None = None) -> list[int]:
        """Token ids of a text or of chat messages; ids are checked and returned. Raises `PromptError`.

        tools: the tools that the model may call. variables: of the chat template, such as `{"enable_thinking": False}`;
        those that the template does not read have no effect. As in transformers, `{"continue_final_message": True}`
        leaves the last message open, so that the output continues it.
        """
        self._check_open()
        variables = None if variables is None else instance("variables", variables, Mapping)
        return self._encoder.encode(prompt, instance("tools", tools, Sequence), variables)

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables of the chat template that `encode` may set."""
        return self._encoder.template_variables

    def encode_prediction(self, prediction: str) -> list[int]:
        """Token ids of a text that the output may repeat, at most as many as a sequence holds. Raises `PromptError`."""
        self._check_open()
        return self._encoder.encode_prediction(instance("prediction", prediction, str))

    @property
    def infill(self) -> Infill | None:
        """Makes prompts for the text between two others; None if the tokenizer has no tokens for that."""
        return self._encoder.infill

    @property
    def chats(self) -> bool:
        """Whether the session accepts messages: the model has a chat template."""
        return self._encoder.chats()

    @property
    def chats_with_tools(self) -> bool:
        """Whether the session accepts messages with tools, for which the model may have a separate template."""
        return self._encoder.chats(tools=True)

    @property
    def tool_format(self) -> ToolFormat:
        """The form in which this model calls tools. Raises `ToolsError` if its chat template has none that is known."""
        return self._encoder.tool_format

    def thinking(
        self, prompt: Sequence[int], variables: Variables | None = None, tools: bool = False
    ) -> Thinking | None:
        """How the model reasons after `prompt`, for `Grammar.after`; None if it does not.

        prompt: token ids of messages. variables: those that the messages were encoded with. tools: whether they were
        encoded with tools.
        """
        return self._encoder.thinking(prompt, variables, tools)

    def prepare(self) -> None:
        """Do now what the first request would wait for. May drop cached rows.

        Reads the weights from the disk, opens the policy's drafts, and measures costs for half a second if neither the
        bundle nor the user's cache has those of this host. Raises `SessionBusyError` while a stream of the session is
        open, `SessionClosedError`.
        """
        self._check_free()
        with self._running:
            self._check_free()
            if self.engine.warm_up is not None:
                self.reset()  # before rows are written of which it knows nothing, in case this is interrupted
                self.engine.warm_up()
        self.decisions.prepare()
        for name in self.decisions.drafts:
            self.drafts.open(name)

    def grammar_late_for(self) -> float:
        """For how many seconds a grammar has been compiling beyond its deadline, 0 for none. Meanwhile no other grammar
        is compiled.
        """
        return self._grammars.late_for()

    def prepare_grammar(self, grammar: Grammar | None = None) -> Grammar | None:
        """Compile `grammar` now; without one, prepare what every grammar needs. May be called from any thread.

        Requests with the returned grammar compile nothing, whatever requests come in between.
        """
        if grammar is not None:
            return self._grammars.hold(OutputGrammar().check("grammar", grammar))
        self._grammars.prepare()
        return None

    @takes(SamplingParameters)
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParameters | None = None,
        schedule: Schedule | None = None,
        **overrides: Any,
    ) -> Stream:
        """An iterator with one `Chunk` per round. It may be cancelled or closed at any time; the session stays usable.

        params: the sampling parameters, greedy by default. overrides: single fields of them as keywords, see
        `SamplingParameters`. schedule: decides how many tokens are drafted, see `runtime/policy/schedule.py`.

        Everything is checked at the call. Raises `ParameterError`, `PromptError`, `SessionBusyError` while another
        stream of the session is open, `SessionClosedError`.
        """
        start, cancels = perf_counter(), self._cancels
        self._check_free()
        parameters = with_overrides(params, overrides)
        prediction = self._encoder.encode_prediction(parameters.prediction)
        tokens, matcher = self.encode(prompt), self._grammars.compile(parameters.grammar)
        request = make_request(self.bundle, self.decisions, tokens, prediction, matcher, parameters, schedule)
        statistics, cancellation = Statistics(), Cancellation()
        chunks = self._decoding.chunks(request, self.answers, statistics, cancellation)
        with self._running:
            self._check_free()  # before a draft is opened for it, or taken from another request
            self.drafts.use(request.drafter)
            stream = Stream(chunks, cancellation, self._running)
            self._stream = weakref.ref(stream)
        if self._cancels != cancels:
            stream.cancel()
        statistics.setup_seconds = statistics.total_seconds = perf_counter() - start
        return stream

    @takes(SamplingParameters)
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParameters | None = None,
        schedule: Schedule | None = None,
        **overrides: Any,
    ) -> Generation:
        """Run a request to its end, and return its text, tokens, finish reason and statistics; options as `stream`."""
        with closing(self.stream(prompt, params, schedule, **overrides)) as stream:
            chunks = list(stream)
        return Generation.of(chunks)

    def score(self, prompt: Prompt, likeliest: int = 0, cache_salt: str | None = None) -> Generation:
        """Generate nothing, and return `prompt_logprobs`: log-probabilities of each token of `prompt` except the first.

        likeliest: how many of the likeliest tokens each position lists as well. Cached rows of other requests have no
        logits and are computed again, in passes as wide as a verification. Raises what `stream` raises.
        """
        likeliest = Whole().check("likeliest", likeliest)
        params = SamplingParameters(max_new_tokens=0, speculate=False, prompt_logprobs=likeliest, cache_salt=cache_salt)
        return self.generate(prompt, params)

    def cancel(self) -> None:
        """End the open request, if any, at its next prompt chunk or round.

        Its last chunk has the finish reason `cancelled`. May be called from any thread and from signal handlers; does
        not wait.
        """
        self._cancels += 1
        stream = self._open_stream
        if stream is not None:
            stream.cancel()

    def reset(self) -> None:
        """Forget all cached rows and earlier answers, so that the next request starts from empty caches. What schedules
        learnt stays. Raises `SessionBusyError`.
        """
        self._check_free()
        with self._running:
            self._check_free()
            self.answers = NgramCache()
            self._context.truncate(0)
            if self._context.prompt_cache is not None:
                self._context.prompt_cache.clear()

    def close(self) -> None:
        """Release what the engine holds, above all device memory. Closing again has no effect.

        An open stream is closed first; if another thread is running it, at its next prompt chunk or round. Iterating it
        further raises `SessionClosedError`. If several threads call this at once, each returns when the session is
        closed. Within another call of the same thread, for example in a signal handler, it only cancels the request and
        raises `SessionBusyError`.
        """
        if holds(self._running) and not self._released:
            self.cancel()
            raise SessionBusyError("this thread is in a call of the session, now cancelled; close it after that call")
        self._closed = True  # at once, so that a thread with many requests does not begin the next one
        try:
            self.cancel()
            with self._running:
                self._close()
        finally:
            self._closed = self._released  # open as before, if it was interrupted while it waited

    def _close(self) -> None:
        if self._released:
            return
        stream = self._open_stream
        if stream is not None:
            stream.close(_closed())
        self._closed = self._released = self.drafts.closed = True
        self.engine.close()

    def __enter__(self) -> Session:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        try:
            self.close()
        except SpecExportError as failure:
            if kind is None:
                raise
            LOG.warning("closing the session failed as well: %s", failure)  # must not hide the error before it

    @property
    def _open_stream(self) -> Stream | None:
        stream = self._stream() if self._stream is not None else None
        return stream if stream is not None and stream.open else None

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _check_free(self) -> None:
        """Called before waiting for anything, and again once nothing can change it."""
        self._check_open()
        if self._open_stream is not None:
            raise SessionBusyError(
                "this session has another open stream; finish or close that one, or load a second session"
            )


def _closed() -> SessionClosedError:
    return SessionClosedError("this session was closed; load the bundle again")
