"""Runs work in a separate process, so that a library that crashes or hangs there affects nothing else."""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, TypeVar

from specexport.errors import EngineError, SpecExportError

Result = TypeVar("Result")
Hear = Callable[[Any], None]

# Seconds that a process may take to release its resources.
MAX_FOR_THE_END = 10.0


class EndedError(EngineError):
    """Raised for a process that ended without a result; says how it ended."""


def apart(work: Callable[..., Result], *arguments: Any, hear: Hear, seconds: float = math.inf) -> Result:
    """Run `work(tell, *arguments)` in a new process; returns its result. `hear` gets whatever `work` passes to `tell`.

    Function, arguments, result and messages must be picklable. Raises `EngineError` with the message of the error that
    `work` raised, and `EndedError` if the process died or took longer than `seconds`.
    """
    context = multiprocessing.get_context("spawn")  # the GPU libraries that the parent has loaded must not be forked
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, work, arguments), daemon=True)
    process.start()
    sender.close()  # then only the child has this end, so that its death is noticed
    deadline = monotonic() + seconds
    try:
        while True:
            left = deadline - monotonic()
            if not receiver.poll(None if left == math.inf else max(left, 0.0)):
                raise EndedError(f"took longer than the {seconds:.0f} s that were left for it")
            kind, value = receiver.recv()
            if kind == "told":
                hear(value)
                continue
            process.join(MAX_FOR_THE_END)
            if kind == "error":
                raise EngineError(value)
            result: Result = value
            return result
    except (EOFError, ConnectionResetError):
        process.join()
        raise EndedError(_how(process.exitcode or 0)) from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _run(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    faulthandler.enable()  # a crash shows where Python was
    try:
        sender.send(("result", work(lambda told: sender.send(("told", told)), *arguments)))
    except Exception as error:
        sender.send(("error", one_line(error)))


def one_line(error: Exception) -> str:
    """The message of an error; the traceback of an unexpected one is also printed to stderr."""
    if isinstance(error, SpecExportError | OSError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is not installed; building needs: pip install 'specexport[export]'"
    traceback.print_exception(error)
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _how(exit_code: int) -> str:
    """How a process ended. A negative exit code is the signal that ended it."""
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code}"
    names = {entry.value: entry.name for entry in signal.Signals}
    return f"the process was ended by {names.get(-exit_code, f'signal {-exit_code}')}"
