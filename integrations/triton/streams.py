"""The model that streams: one session an instance, a response a round, one request at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ...errors import GrammarError, MissingPackageError, ParameterError, SpecExportError
from ...runtime.load import load
from ...runtime.session import Session
from .asked import Asked
from .counters import Counters
from .layout import BUNDLE, OPTIONS, REASON, STATISTICS, TEXT, TEXT_OUTPUT
from .tensors import input_bytes, refusal, response

# Between two questions whether the client has left. One took 20 to 170 us here, so all of them take less than 1 %.
POLL_SECONDS = 0.02


class Streams:
    """What comes while a request runs waits in Triton's queue."""

    def __init__(self, backend: Any, session: Session, args: Mapping[str, str]) -> None:
        self._backend, self._session = backend, session
        self._counters = Counters(backend, args["model_name"], args["model_instance_name"])

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            last = self._answer(request, sender)
            # Whatever happened: without this flag Triton holds the request for good.
            sender.send(last, flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def close(self) -> None:
        self._session.close()

    def _answer(self, request: Any, sender: Any) -> Any:
        """Sends all responses but the last, which it returns."""
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
            told = str(error) if isinstance(error, SpecExportError) else f"{type(error).__name__}: {error}"
            return refusal(backend, " ".join(told.split()), codes.INTERNAL)


def load_session(args: Mapping[str, str], parameters: Mapping[str, str]) -> Session:
    """The session of one instance: on a GPU of its own, or with its share of the cores. Raises what `load` does.

    args: of the backend's `initialize`. parameters: of `config.pbtxt`.
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
    session.prepare()  # nobody's request waits for it
    with suppress(MissingPackageError, GrammarError):  # a request with a grammar will be told
        session.prepare_grammar()
    return session


def share_of_cores(args: Mapping[str, str]) -> int:
    """Threads of each of several instances on the CPU, which would all take all cores; 0 for the engine's choice."""
    instances = sum(group["count"] for group in json.loads(args["model_config"])["instance_group"])
    return max(1, len(os.sched_getaffinity(0)) // instances) if instances > 1 else 0


@contextmanager
def cancelled_by(sender: Any, cancel: Callable[[], None]) -> Iterator[None]:
    """Calls `cancel` once the client of `sender` has left, also while its prompt is read and nothing is sent."""
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
