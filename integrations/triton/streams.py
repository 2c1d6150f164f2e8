"""The model that streams: one session per instance, one request at a time, one response per round.

A request has two tensors: a text, and options as one JSON object (`Asked`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ...errors import GrammarError, MissingPackageError, ParameterError, PromptError, SpecExportError
from ...runtime.grammar.grammar import Grammar
from ...runtime.load import load
from ...runtime.sampling.options import shown
from ...runtime.sampling.parameters import SamplingParameters, with_overrides
from ...runtime.session import Session
from ...runtime.state.statistics import Statistics
from ...runtime.stream import Stream
from ...runtime.text.encode import Prompt
from .tensors import BUNDLE, OPTIONS, REASON, STATISTICS, TEXT, TEXT_OUTPUT, input_bytes, refusal, response

# Seconds between checks whether the client has left. A check took 20 to 170 us here, so together they take less than
# 1 %.
POLL_SECONDS = 0.02
GRAMMARS: Mapping[str, Callable[[Any], Grammar]] = {
    "json_schema": Grammar.json_schema,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
}
# Name and description, by attribute of `Statistics`.
COUNTED = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were answered."),
    "emitted": ("generation_tokens", "Tokens generated."),
    "reused_tokens": ("prefix_cache_hits", "Prompt tokens whose cache rows were reused."),
    "rounds": ("iterations", "Rounds."),
    "drafted": ("spec_decode_num_draft_tokens", "Draft tokens."),
    "accepted": ("spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
}


class Streams:
    """The model of one instance. Requests that arrive while one runs wait in Triton's queue."""

    def __init__(self, backend: Any, session: Session, args: Mapping[str, str]) -> None:
        self._backend, self._session = backend, session
        self._counters = Counters(backend, args["model_name"], args["model_instance_name"])

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            last = self._answer(request, sender)
            # Always, also after an error: without this flag Triton keeps the request forever.
            sender.send(last, flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def close(self) -> None:
        self._session.close()

    def _answer(self, request: Any, sender: Any) -> Any:
        """Send all responses except the last, which is returned."""
        backend, codes = self._backend, self._backend.TritonError
        try:
            asked = Asked.of(input_bytes(backend, request, TEXT), input_bytes(backend, request, OPTIONS))
            with asked.stream(self._session) as stream, cancelled_by(sender, stream.cancel):
                for chunk in stream:
                    if chunk.finish_reason is not None:
                        self._counters.add(chunk.statistics)
                        numbers = json.dumps(chunk.statistics.as_dict())
                        ended = {REASON: chunk.finish_reason, STATISTICS: numbers}
                        return response(backend, {TEXT_OUTPUT: chunk.text, **ended})
                    sender.send(response(backend, {TEXT_OUTPUT: chunk.text}))
            raise AssertionError("a stream ended without a reason")
        except ParameterError as error:
            return refusal(backend, str(error), codes.INVALID_ARG)
        except Exception as error:
            message = str(error) if isinstance(error, SpecExportError) else f"{type(error).__name__}: {error}"
            return refusal(backend, " ".join(message.split()), codes.INTERNAL)


def load_session(args: Mapping[str, str], parameters: Mapping[str, str]) -> Session:
    """The session of one instance: on its own GPU, or with its share of the cores. Raises what `load` raises.

    args: those of the backend's `initialize`. parameters: those of `config.pbtxt`.
    """
    on_gpu = args["model_instance_kind"] == "GPU"
    budget = parameters.get("prompt_cache_mib")
    session = load(
        Path(args["model_repository"]) / BUNDLE,
        engine=parameters.get("engine"),
        threads=int(parameters.get("threads", 0)) or (0 if on_gpu else share_of_cores(args)),
        device=int(args["model_instance_device_id"]) if on_gpu else None,
        prompt_cache_bytes=None if budget is None else int(budget) << 20,
    )
    session.prepare()  # so that no request waits for it
    with suppress(MissingPackageError, GrammarError):  # requests with a grammar will get the error
        session.prepare_grammar()
    return session


def share_of_cores(args: Mapping[str, str]) -> int:
    """Threads of each instance on the CPU, if there are several, so that they do not all use all cores; 0, the engine's
    choice, for a single one.
    """
    instances = sum(group["count"] for group in json.loads(args["model_config"])["instance_group"])
    return max(1, len(os.sched_getaffinity(0)) // instances) if instances > 1 else 0


@contextmanager
def cancelled_by(sender: Any, cancel: Callable[[], None]) -> Iterator[None]:
    """Within the context, call `cancel` once the client of `sender` has left, also during prefill, when nothing is
    sent.
    """
    ended = Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            if sender.is_cancelled():
                cancel()
                return

    thread = Thread(target=watch, name="specexport-cancel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True)
class Asked:
    """A parsed request. prompt: a text, or the messages of a chat."""

    prompt: Prompt
    parameters: SamplingParameters

    @classmethod
    def of(cls, text: bytes | None, options: bytes | None) -> Asked:
        """Parse the tensors. text: in UTF-8. options: a JSON object with the fields of `SamplingParameters` by name;
        `grammar` is an object with one kind, such as `{"regex": "a+"}`; `messages`, a chat, replaces the text.

        Raises `ParameterError`, or `GrammarError` or `PromptError`, which are kinds of it, for a request that is wrong.
        """
        given = _object(options)
        messages = given.pop("messages", None)
        if (text is None) == (messages is None):
            found = "both text_input and messages" if messages is not None else "neither text_input nor messages"
            raise PromptError(f"the request has {found}; give one of them", "messages")
        if messages is not None and not _are_messages(messages):
            raise PromptError(
                f"messages are {shown(messages)}; give a list of objects with role and content", "messages"
            )
        if given.get("grammar") is not None:
            given["grammar"] = _grammar(given["grammar"])
        if isinstance(given.get("logit_bias"), dict):
            given["logit_bias"] = {_token(name): bias for name, bias in given["logit_bias"].items()}
        try:
            parameters = with_overrides(None, given)
        except TypeError as error:  # an unknown name
            raise ParameterError(f"options: {error}", "options") from None
        return cls(messages if text is None else _decoded("text_input", text), parameters)

    def stream(self, session: Session) -> Stream:
        """Start the request on `session`. Raises what `Session.stream` raises."""
        grammar = self.parameters.grammar
        if grammar is None or isinstance(self.prompt, str):
            return session.stream(self.prompt, self.parameters)
        ids = session.encode(self.prompt)  # if a chat's model thinks, the grammar begins after its thoughts
        return session.stream(ids, self.parameters, grammar=grammar.after(session.thinking(ids)))


def _object(options: bytes | None) -> dict[str, Any]:
    if options is None or not options.strip():
        return {}
    try:
        given = json.loads(_decoded("options", options))
    except RecursionError:
        raise ParameterError("options are nested too deeply; give one JSON object", "options") from None
    except ValueError as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"options are not JSON: {error}; give one JSON object", "options") from None
    if not isinstance(given, dict):
        raise ParameterError(f"options are {shown(given)}; give one JSON object", "options")
    return given


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ParameterError(f"{name} is not UTF-8: {error.reason} at byte {error.start}", name) from None


def _are_messages(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(one, dict) for one in given)


def _grammar(given: Any) -> Grammar:
    if not isinstance(given, dict) or len(given) != 1 or next(iter(given)) not in GRAMMARS:
        raise ParameterError(
            f"grammar is {shown(given)}; it must be an object with one of {', '.join(GRAMMARS)}", "grammar"
        )
    [(kind, value)] = given.items()
    return GRAMMARS[kind](value)


def _token(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ParameterError(
            f"a token of logit_bias is {shown(name)}; it must be a whole number", "logit_bias"
        ) from None


class Counters:
    """The counters of one instance."""

    def __init__(self, backend: Any, model: str, instance: str) -> None:
        labels = {"model": model, "instance": instance}
        self._families = {
            attribute: backend.MetricFamily(
                name=f"specexport:{name}_total", description=description, kind=backend.MetricFamily.COUNTER
            )
            for attribute, (name, description) in COUNTED.items()
        }  # kept, since the metrics of a family disappear with it
        self._metrics = {attribute: family.Metric(labels=labels) for attribute, family in self._families.items()}

    def add(self, statistics: Statistics) -> None:
        """Add the counts of one request."""
        for attribute, metric in self._metrics.items():
            metric.increment(getattr(statistics, attribute))
