"""The model that streams: one session per instance, one request at a time, one response per round."""

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

# Seconds between checks whether the client has left. A check took 20 to 170 us here, so together they take less than
# 1 %.
POLL_SECONDS = 0.02


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
