"""A loaded bundle: one sequence at a time, streamed or whole, speculative or plain."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from threading import Lock
from time import perf_counter
from types import MappingProxyType
from typing import Literal, TypedDict, Unpack, cast

from tokenizers import Tokenizer

from ..bundle import Bundle
from ..engines.base import Decoder, Engine
from ..engines.registry import load_engine
from ..errors import BundleError, EngineError, ParameterError, PromptError, SessionBusyError
from .drafting.drafters import NoDraft, check_drafter, make_draft
from .drafting.translate import NarrowDecoder, TranslatedDecoder, load_maps
from .loop.device_rounds import DeviceRound, device_rounds
from .loop.speculate import HostRound, Round, decode
from .policy.decisions import Decisions
from .policy.schedule import FixedSchedule, Schedule
from .sampling.parameters import SamplingParameters, Verification, token_ids, whole_number
from .sampling.rules import NonFiniteLogitsError, Rule, make_rule
from .state.context import CachedDecoder, Context
from .state.statistics import Statistics
from .text.chat_template import Message, render_chat
from .text.detokenizer import Detokenizer, StopStrings

Prompt = str | Sequence[int] | Sequence[Message]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Chunk:
    """What one round adds: text (whole characters, so it may lag the tokens), tokens, and at the end the reason.

    statistics is one object for the whole request: it goes on counting.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    statistics: Statistics


@dataclass(frozen=True)
class Generation:
    """finish_reason `stop`: a stop token or stop string came; `length`: max_new_tokens or the capacity was reached."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics


class Options(TypedDict, total=False):
    """The keyword arguments of `Session.stream`."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    banned_tokens: Iterable[int]
    min_new_tokens: int
    seed: int | None
    verification: Verification
    stop: str | Sequence[str]
    stop_token_ids: int | Sequence[int] | None
    speculate: bool
    num_draft_tokens: int | None
    drafter: str | None
    route: str | None
    schedule: Schedule | None


def load(
    path: str | os.PathLike[str],
    engine: str | None = None,
    threads: int = 0,
    check_digests: bool = True,
    policy: bool = True,
) -> Session:
    """Load a bundle. engine: a name from `specexport doctor`, by default the first usable one of the bundle.

    threads: of the engine, 0 for its own choice. check_digests: compare every file's SHA-256 with the manifest (about a
    second per 1.5 GB). policy: follow the bundle's policy.json. Raises `BundleError`, `EngineError`.
    """
    bundle = Bundle.open(Path(path), check_digests)
    return Session(bundle, load_engine(bundle, engine, threads), threads, policy)


class Session:
    """One sequence at a time over the two caches of a bundle; not safe to use from two threads at once.

    The caches outlive a request: the next one keeps the rows of the prefix that both share.
    """

    def __init__(self, bundle: Bundle, engine: Engine, threads: int = 0, policy: bool = True) -> None:
        self.bundle = bundle
        self.engine = engine
        self.threads = threads
        self.decisions = Decisions.load(bundle, engine, threads) if policy else Decisions()
        text = bundle.manifest.text
        try:
            self.tokenizer = Tokenizer.from_file(str(bundle.path(text.tokenizer)))
        except Exception as error:  # tokenizers raises a bare Exception
            raise BundleError(f"{bundle.path(text.tokenizer)} is no tokenizer: {error}") from None
        self._chat_template = (
            bundle.path(text.chat_template).read_text(encoding="utf-8") if text.chat_template else None
        )
        draft = self._draft_decoder()
        self._context = Context(CachedDecoder(engine.target), CachedDecoder(draft) if draft else None)
        self._lock = Lock()

    def _draft_decoder(self) -> Decoder | None:
        """The draft as a decoder of the target's ids."""
        draft, target, vocabulary = self.engine.draft, self.engine.target, self.bundle.manifest.vocabulary
        if draft is None:
            return None
        if vocabulary is not None:
            maps = load_maps(self.bundle.path(vocabulary.maps), vocabulary, target.vocab_size, draft.vocab_size)
            return TranslatedDecoder(draft, *maps)
        return draft if draft.vocab_size >= target.vocab_size else NarrowDecoder(draft)

    @property
    def capacity(self) -> int:
        """The longest sequence in tokens, prompt included."""
        return self.bundle.manifest.longest

    @property
    def max_draft_tokens(self) -> int:
        return self.bundle.manifest.contract.max_draft_tokens

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, of chat messages, or of ids (checked). Raises `PromptError`."""
        if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            raise PromptError(
                f"the prompt is of type {type(prompt).__name__}; give a text, a list of messages or a list of token ids"
            )
        if isinstance(prompt, str):
            tokens = self._encode_text(prompt, add_special_tokens=True)
        elif any(isinstance(item, Mapping) for item in prompt):
            messages = cast(Sequence[Message], prompt)
            text = render_chat(self._chat_template, messages, self.bundle.manifest.text.special_tokens)
            tokens = self._encode_text(text, add_special_tokens=False)
        else:
            tokens = [whole_number(f"token {place} of the prompt", item) for place, item in enumerate(prompt)]
        vocab_size = self.bundle.manifest.target.vocab_size
        for place, token in enumerate(tokens):
            if not 0 <= token < vocab_size:
                raise PromptError(
                    f"the prompt holds token {token} at position {place}; ids go from 0 to {vocab_size - 1}"
                )
        if not tokens:
            raise PromptError("the prompt is empty; give at least one token of text")
        if len(tokens) >= self.capacity:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, the bundle's capacity is {self.capacity} with at least one to generate; "
                "shorten it or build with a larger --max-seq-len"
            )
        return tokens

    def _encode_text(self, text: str, add_special_tokens: bool) -> list[int]:
        if not text:
            return []  # a start token alone is no prompt
        try:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:  # all that tokenizers says of a lone surrogate, as in an argument of broken UTF-8
            raise PromptError("the prompt is no valid Unicode; give it as UTF-8") from None

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = MappingProxyType({}),
        banned_tokens: Iterable[int] = (),
        min_new_tokens: int = 0,
        seed: int | None = None,
        verification: Verification = "block",
        stop: str | Sequence[str] = (),
        stop_token_ids: int | Sequence[int] | None = None,
        speculate: bool = True,
        num_draft_tokens: int | None = None,
        drafter: str | None = None,
        route: str | None = None,
        schedule: Schedule | None = None,
    ) -> Generator[Chunk, None, None]:
        """Yield a `Chunk` a round; closing the iterator cancels, and the session stays usable.

        temperature to min_new_tokens: see `SamplingParameters`. seed: the same seed, settings, bundle and engine give
        the same tokens; with an adaptive policy, behind the same earlier requests. verification: how sampled drafts are
        judged, `block` or `token`; both keep the target's distribution. drafter: `model`, `ngram` or `suffix` (looked
        up in the text), `ngram+model` or `suffix+model` (looked up where there is a match); by default the model, or
        `ngram` in a bundle without one.
        stop: strings that end the text before them; the tokens keep what they were made of. stop_token_ids: default the
        model's own, `()` for none; the one that came is the last token and has no text. num_draft_tokens: k of every
        round, 0 for plain decoding. Without it and a drafter, the bundle's policy decides for the `route` of the
        request (its default for none, and for one that it does not know); a bundle without a policy drafts its maximum.
        schedule: decides instead, see `runtime/policy/schedule.py`. Arguments are checked here, at the call.
        Raises `ParameterError`, `PromptError`, and `SessionBusyError` while another stream of the session is open.
        """
        tokens = self.encode(prompt)
        parameters = SamplingParameters(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=logit_bias,
            banned_tokens=banned_tokens,
            min_new_tokens=min_new_tokens,
            seed=seed,
            verification=verification,
        )
        if whole_number("max_new_tokens", max_new_tokens) < 1:
            raise ParameterError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
        if parameters.min_new_tokens > max_new_tokens:
            raise ParameterError(
                f"min_new_tokens is {min_new_tokens}; it must be at most max_new_tokens, which is {max_new_tokens}"
            )
        stops = StopStrings([stop] if isinstance(stop, str) else stop)
        given = self.bundle.manifest.text.stop_token_ids if stop_token_ids is None else stop_token_ids
        ends = frozenset(token_ids("stop_token_ids", [given] if isinstance(given, Integral) else given))
        vocab_size = self.engine.target.vocab_size
        for token in ends if stop_token_ids is not None else ():
            if not 0 <= token < vocab_size:
                raise ParameterError(f"stop_token_ids names token {token}; ids go from 0 to {vocab_size - 1}")
        rule = make_rule(parameters, vocab_size, tokens, ends)
        name, chosen = self._schedule(speculate, drafter, num_draft_tokens, route, schedule)
        limit = min(max_new_tokens, self.capacity - len(tokens))
        return self._run(tokens, parameters, rule, name, limit, stops, ends, chosen)

    def _schedule(
        self,
        speculate: bool,
        drafter: str | None,
        num_draft_tokens: int | None,
        route: str | None,
        schedule: Schedule | None,
    ) -> tuple[str | None, Schedule]:
        """The drafter, None for plain decoding, and how many tokens it drafts. Raises `ParameterError`."""
        most = self.max_draft_tokens
        k = most if num_draft_tokens is None else whole_number("num_draft_tokens", num_draft_tokens)
        if not 0 <= k <= most:
            raise ParameterError(f"num_draft_tokens is {k}; this bundle was built for 0 to {most} (--max-draft-tokens)")
        if route is not None and not isinstance(route, str):
            raise ParameterError(f"route is {route!r}; it must be the name of a route")
        name = check_drafter(drafter, self._context.draft is not None)
        if not speculate or not k:
            return None, FixedSchedule(0)
        if schedule is not None:
            return name, schedule
        if drafter is not None or num_draft_tokens is not None:
            return name, FixedSchedule(k)
        decided, schedule = self.decisions.schedule(route, most)
        return decided or name, schedule

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """The whole of `stream` with the same options: text, tokens, finish reason and statistics of one request."""
        chunks = list(self.stream(prompt, **options))
        last = chunks[-1]
        assert last.finish_reason is not None
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        return Generation("".join(chunk.text for chunk in chunks), tokens, last.finish_reason, last.statistics)

    def reset(self) -> None:
        """Forget the cached prefix, so that the next request starts from nothing. Raises `SessionBusyError`."""
        with self._exclusive():
            self._context.truncate(0)

    def close(self) -> None:
        """Give back what the engine holds, device memory above all. The session cannot be used afterwards."""
        with self._exclusive():
            self.engine.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise SessionBusyError(
                "this session is in the middle of another stream; finish or close that one, or load a second session"
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _finite(self) -> Iterator[None]:
        """Turns logits that are no numbers into an error that names the graph and the place, and cleans the caches."""
        try:
            yield
        except NonFiniteLogitsError as error:
            position = len(self._context.tokens) - 1 + error.index
            model = self.bundle.manifest.models[error.role]
            self._context.forget()
            graph = model.graphs.get(self.engine.dialect, error.role)
            raise EngineError(
                f"{self.bundle.path(graph)} gave {error.value} as a logit behind position {position}, expected numbers; "
                "the weights or the precision cannot run this sequence"
            ) from None

    def _round(
        self,
        parameters: SamplingParameters,
        rule: Rule,
        drafter: str | None,
        schedule: Schedule,
        statistics: Statistics,
    ) -> Round:
        """How this request's rounds are run: whole on the device where it can, else by the host."""
        context, chunk = self._context, self.bundle.manifest.contract.prompt_chunk
        rounds = None if schedule.needs_host else device_rounds(self.engine, parameters, drafter)
        if rounds is not None:
            schedule.guide = None
            return DeviceRound(context, rounds, parameters, drafter is not None, chunk, statistics)
        draft = make_draft(drafter, context, chunk, rule, statistics, schedule.guide) if drafter else NoDraft()
        return HostRound(context, draft, rule, statistics)

    def _run(
        self,
        prompt: list[int],
        parameters: SamplingParameters,
        rule: Rule,
        drafter: str | None,
        limit: int,
        stops: StopStrings,
        ends: frozenset[int],
        schedule: Schedule,
    ) -> Generator[Chunk, None, None]:
        with self._exclusive(), self._finite():
            resumed = perf_counter()
            contract, context = self.bundle.manifest.contract, self._context
            statistics = Statistics(prompt_tokens=len(prompt), reused_tokens=context.start(prompt))
            round = self._round(parameters, rule, drafter, schedule, statistics)
            detokenizer = Detokenizer(self.tokenizer, prompt)
            finish: FinishReason | None = None
            for round_tokens in decode(context, round, schedule, limit, contract.prompt_chunk, statistics):
                kept, text = 0, ""
                for token in round_tokens:
                    kept += 1
                    if token not in ends:
                        text += stops.add(detokenizer.add(token))
                    if token in ends or stops.found:
                        finish = "stop"
                        break
                context.truncate(len(context.tokens) - len(round_tokens) + kept)
                statistics.emitted += kept
                if finish is None and statistics.emitted >= limit:
                    finish = "length"
                if finish and not stops.found:
                    text += stops.flush()
                statistics.total_seconds += perf_counter() - resumed
                statistics.first_token_seconds = statistics.first_token_seconds or statistics.total_seconds
                yield Chunk(text, tuple(round_tokens[:kept]), finish, statistics)
                if finish:
                    return
                resumed = perf_counter()
