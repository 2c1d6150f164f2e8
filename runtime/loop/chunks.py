"""From a request to chunks: rounds are decoded, turned into text, and cut where the request ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from tokenizers import Tokenizer

from ...bundle import Bundle
from ...engines.base import Engine
from ...errors import EngineError
from ..drafting.drafters import make_draft
from ..drafting.lookup import PredictionLookup
from ..drafting.names import model_of
from ..drafting.ngram_cache import AnswerLookup, NgramCache
from ..drafting.rounds import Source
from ..request import Request
from ..sampling.logprobs import TokenLogprobs
from ..sampling.rules import NonFiniteLogitsError
from ..state.cached_decoder import Cancellation, Cancelled
from ..state.context import Context
from ..state.hidden_rows import HiddenDecoder
from ..state.statistics import Statistics
from ..text.detokenizer import Detokenizer, StopStrings
from .device_rounds import DeviceRound, device_rounds
from .scoring import Scores
from .speculate import HostRound, Round, decode
from .tree_round import TreeRound

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Chunk:
    """What one round adds to the output.

    text: complete characters only, so it may lag behind the tokens. finish_reason: None until the last chunk; the
    chunk that ends a cancelled request has no tokens. statistics: one object for the whole request, which later rounds
    update.

    accepted: how many of the first tokens were drafted. The target itself chose those after them: one token, two if a
    candidate was accepted, or none if the output ended before. pieces: the text that each token released; together they
    are `text`.

    draft_tokens: all drafted tokens, also the rejected ones. sources: where each of them came from: `model`, `lookup`,
    `prediction` or `grammar`. logprobs: one for each token, if requested. prompt_logprobs: in the first chunk, one for
    each token of the prompt except the first, if requested.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    statistics: Statistics
    accepted: int = 0
    pieces: tuple[str, ...] = ()
    draft_tokens: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class OutputText:
    """The text of a request's tokens, and where it ends."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        grammar = request.parameters.grammar
        shown = {*request.parameters.shown, *(grammar.shown if grammar else ())}
        self._detokenizer = Detokenizer(tokenizer, request.prompt, shown, whole=grammar is not None)
        self._stops = StopStrings(request.stops) if request.stops else None
        self._stop_tokens, self._left = request.stop_tokens, request.limit
        self._matcher = request.matcher

    def add(self, tokens: Sequence[int]) -> tuple[tuple[str, ...], FinishReason | None]:
        """(the text of each of the round's tokens that belongs to the output, why it ends with them)."""
        pieces, stops = [], self._stops
        finish: FinishReason | None = None
        # One token at a time: the text must not depend on how many tokens come at once.
        for token in tokens:
            if token in self._stop_tokens:
                pieces.append("")
                finish = "stop"
                break
            piece = self._detokenizer.add(token)
            pieces.append(piece if stops is None else stops.add(piece))
            if (stops is not None and stops.found) or self._completes(token):
                finish = "stop"
                break
        self._left -= len(pieces)
        if finish is None and self._left <= 0:
            finish = "length"
        if finish:
            pieces[-1] += self.flush()
        return tuple(pieces), finish

    def _completes(self, token: int) -> bool:
        """Whether the grammar allows nothing after `token`."""
        if self._matcher is None:
            return False
        self._matcher.advance(token)
        return self._matcher.done

    def flush(self) -> str:
        """The text that was held back, once no more tokens come."""
        if self._stops is None:
            return self._detokenizer.flush()
        if self._stops.found:
            return ""
        text = self._stops.add(self._detokenizer.flush())
        return text if self._stops.found else text + self._stops.flush()


@dataclass(frozen=True)
class Decoding:
    """Decodes requests, one after the other."""

    bundle: Bundle
    engine: Engine
    tokenizer: Tokenizer
    context: Context
    scores: Scores = field(default_factory=Scores)

    def chunks(
        self, request: Request, answers: NgramCache, statistics: Statistics, cancellation: Cancellation
    ) -> Generator[Chunk, None, None]:
        """Decode `request`. The context is left valid wherever the iteration is abandoned.

        answers: of the session; an output that ends is added.
        """
        context, parameters, resumed = self.context, request.parameters, perf_counter()
        scored: tuple[TokenLogprobs, ...] = ()
        for cached in context.every_decoder:
            cached.check_cancelled = cancellation.check
        output = OutputText(self.tokenizer, request)
        finish: FinishReason | None = None
        try:
            cancellation.check()
            statistics.prompt_tokens = len(request.prompt)
            models = set(map(model_of, request.drafters))
            drafting = [cached for name, cached in context.drafts.items() if name in models]
            context.readers = [cached for cached in drafting if isinstance(cached, HiddenDecoder)]
            statistics.reused_tokens = context.start(request.prompt, parameters.cache_salt)
            statistics.restored_tokens = context.restored
            if parameters.prompt_logprobs is not None:
                statistics.reused_tokens = self.scores.resume(context, parameters.prompt_logprobs)
                statistics.restored_tokens = min(statistics.restored_tokens, statistics.reused_tokens)
                with self._finite():
                    scored = self.scores.complete(context)
                statistics.prefill_seconds = perf_counter() - resumed
            if not request.limit:
                statistics.total_seconds += perf_counter() - resumed
                statistics.first_token_seconds = statistics.total_seconds
                yield Chunk("", (), "length", statistics, prompt_logprobs=scored)
                return
            round = self._round(request, answers, statistics)
            with self._finite():
                for outcome in decode(context, round, request.schedule, request.limit, statistics):
                    tokens = outcome.tokens
                    pieces, finish = output.add(tokens)
                    kept = len(pieces)
                    context.truncate(len(context.tokens) - len(tokens) + kept)
                    statistics.emitted += kept
                    if not {"grammar", "prediction"}.issuperset(outcome.sources):  # of the request, not of a drafter
                        statistics.count_drafter(outcome.drafter or str(request.drafter))
                    if request.matcher is not None:
                        statistics.grammar_seconds = request.matcher.seconds
                    if finish:  # now, since the caller may never ask for more
                        answers.add(context.tokens, len(request.prompt), parameters.cache_salt)
                    statistics.total_seconds += perf_counter() - resumed
                    statistics.first_token_seconds = statistics.first_token_seconds or statistics.total_seconds
                    yield Chunk(
                        "".join(pieces),
                        tuple(tokens[:kept]),
                        finish,
                        statistics,
                        min(kept, outcome.num_accepted),
                        pieces,
                        outcome.draft_tokens,
                        outcome.sources,
                        outcome.logprobs[:kept],
                        scored,
                    )
                    scored = ()
                    if finish:
                        return
                    resumed = perf_counter()
                    cancellation.check()
        except Cancelled:
            statistics.total_seconds += perf_counter() - resumed
            text = output.flush()
            yield Chunk(text, (), "cancelled", statistics, pieces=(text,))

    def _round(self, request: Request, answers: NgramCache, statistics: Statistics) -> Round:
        """How this request's rounds are run: completely on the device where possible, else by the host."""
        context, parameters, rule = self.context, request.parameters, request.rule
        rounds = None if request.schedule.needs_host else device_rounds(self.engine, parameters, request.drafter)
        if rounds is not None:
            return DeviceRound(context, rounds, parameters, request.drafter is not None, statistics)
        predicts = request.prediction and request.drafters
        prediction = PredictionLookup(request.prompt, request.prediction) if predicts else None
        earlier = None if parameters.seeded else AnswerLookup(answers, parameters.cache_salt)
        draft = make_draft(request.drafters, context, rule, statistics, prediction, earlier)
        trees, likeliest = self.engine.trees, parameters.logprobs
        if trees is None or rule.candidates is None or not request.num_candidates:
            return HostRound(context, draft, rule, statistics, likeliest)
        rule.candidates.allow(request.num_candidates, request.stop_tokens)
        return TreeRound(context, draft, rule, statistics, trees, self.bundle.manifest.contract, likeliest)

    @contextmanager
    def _finite(self) -> Iterator[None]:
        """Turns logits that are not numbers into an error that names the graph and the position, and cleans the
        caches.
        """
        try:
            yield
        except NonFiniteLogitsError as error:
            position = len(self.context.tokens) - 1 + error.index
            manifest, drafts_with = self.bundle.manifest, self.context.drafts_with
            model = manifest.target if error.role == "target" else manifest.draft_called(drafts_with).model
            self.context.forget()
            graph = model.graphs.get(self.engine.dialect, error.role)
            raise EngineError(
                f"{self.bundle.path(graph)} gave a non-finite logit ({error.value}) after position {position}; the "
                "weights or the precision cannot run this sequence"
            ) from None
