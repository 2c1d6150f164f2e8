"""The runners' side: a process that loads a pair once and answers requests, one JSON object per line each way.

    -> {"prompt_tokens": [...], "new_tokens": 64, "speculative": true, "k": 4}
    <- {"seconds_first": 0.2, "tokens_first": 1, "seconds_decode": 0.8, "cpu_decode": 1.6, "tokens": [...],
        "rounds": 20}
    -> {"widths": [1, 5], "context": 256, "repeats": 20}
    <- {"milliseconds": {"1": 12.0, "5": 17.2}}
    -> {"logits_of": [...], "file": "a/path"}
    <- {"rows": 140, "columns": 49152}

A runner's first line is {"name": ..., "versions": {...}, "speculative": true, "widths": false, "logits": true}; for a
failure it sends {"error": "one line"}. Without a draft model, `speculative` says whether the system has prompt lookup.
"logits_of" has tokens, whose logits the runner writes to the file: float32, one row per token, for the token that
follows. seconds_first is the time from the request to the first tokens, prefill included; tokens_first is their number.
seconds_decode is the time from there to the last of exactly new_tokens tokens, greedy and not stopped by an end token.
cpu_decode is the processor time of all threads in that time, including spinning. rounds: passes of the target after the
prefill, if the runner knows. Every runner's environment imports this file, so it uses only the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Protocol


@dataclass(frozen=True)
class Answer:
    """An answer; see the module's docstring. Times in seconds."""

    seconds_first: float
    tokens_first: int
    seconds_decode: float
    cpu_decode: float
    tokens: list[int]
    rounds: int | None = None


class Stopwatch:
    """Times tokens as they arrive; call `add` with the tokens of each round."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.tokens_first = 0
        self.start = self.first = self.last = perf_counter()
        self.cpu_first = self.cpu_last = process_time()

    def add(self, tokens: list[int]) -> None:
        self.last, self.cpu_last = perf_counter(), process_time()
        if tokens and not self.tokens:
            self.first, self.cpu_first, self.tokens_first = self.last, self.cpu_last, len(tokens)
        self.tokens += tokens

    def answer(self, new_tokens: int, rounds: int | None = None) -> Answer:
        """The answer. Raises `ValueError` if the system stopped early."""
        if len(self.tokens) < new_tokens:
            raise ValueError(f"{len(self.tokens)} tokens came, {new_tokens} were asked for")
        # The last round may give more tokens than requested; its whole time is counted, and all of its tokens.
        cpu = self.cpu_last - self.cpu_first
        return Answer(self.first - self.start, self.tokens_first, self.last - self.first, cpu, self.tokens, rounds)


class Runner(Protocol):
    """A loaded pair. `name` and `versions` go into the table; `speculative`: whether it can draft."""

    name: str
    versions: dict[str, str]
    speculative: bool

    def generate(self, prompt: list[int], new_tokens: int, speculative: bool, k: int) -> Answer: ...


class WidthRunner(Runner, Protocol):
    """A runner that can also run single passes of the target."""

    def pass_of(self, context: int, width: int) -> Callable[[], None]:
        """A function that runs one pass of `width` tokens after `context` tokens, and can be called repeatedly."""
        ...


class LogitsRunner(Runner, Protocol):
    """A runner that can also return logits, from the model that answers requests."""

    def logits_of(self, tokens: list[int]) -> Any:
        """A numpy array `[len(tokens), vocab] float32`."""
        ...


def write_logits(runner: LogitsRunner, tokens: list[int], path: str) -> dict[str, int]:
    """Write logits to a file. It has only the numbers, row by row, so that runners without numpy can write it too."""
    logits = runner.logits_of(tokens)
    if logits.dtype.name != "float32" or logits.ndim != 2 or len(logits) != len(tokens):
        raise ValueError(
            f"the logits of {len(tokens)} tokens are {logits.dtype.name} of shape {logits.shape}, expected float32, "
            "a row a token"
        )
    logits.tofile(path)
    return {"rows": logits.shape[0], "columns": logits.shape[1]}


def measure_widths(runner: WidthRunner, widths: list[int], context: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of one pass, by width."""
    found = {}
    for width in widths:
        run = runner.pass_of(context, width)
        times = []
        for repeat in range(repeats + 3):  # the first ones warm up
            start = perf_counter()
            run()
            if repeat >= 3:
                times.append(perf_counter() - start)
        found[str(width)] = median(times) * 1e3
    return found


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The command line of every runner."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="checkpoint folder; specexport: the bundle")
    parser.add_argument("--draft", help="checkpoint folder")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=1024, help="longest sequence")
    parser.add_argument("--work", type=Path, required=True, help="folder of converted models, reused")
    return parser.parse_args()


def converted(work: Path, checkpoint: str, label: str, convert: Callable[[Path], None]) -> Path:
    """Run `convert` once per checkpoint; returns its folder in `work`, named by the checkpoint's files and label."""
    digest = hashlib.sha256(label.encode())
    for path in sorted(Path(checkpoint).iterdir()):
        status = path.stat()
        digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    folder = work / f"{label}-{digest.hexdigest()[:12]}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        part.mkdir(parents=True)
        try:
            convert(part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def reply(runner: Runner, request: dict[str, Any]) -> dict[str, Any]:
    if "widths" in request:
        return {"milliseconds": measure_widths(runner, request["widths"], request["context"], request["repeats"])}  # type: ignore[arg-type]
    if "logits_of" in request:
        return write_logits(runner, request["logits_of"], request["file"])  # type: ignore[arg-type]
    answer = runner.generate(request["prompt_tokens"], request["new_tokens"], request["speculative"], request["k"])
    return asdict(answer)


def serve(make: Callable[[], Runner]) -> None:
    """Make the runner and answer until standard input ends. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)

        def say(line: dict[str, Any]) -> None:
            print(json.dumps(line), file=output, flush=True)

        def one_line(error: BaseException) -> dict[str, str]:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]}

        try:
            runner = make()
        except Exception as error:
            say(one_line(error))
            sys.exit(1)
        can = {"speculative": runner.speculative}
        can |= {"widths": hasattr(runner, "pass_of"), "logits": hasattr(runner, "logits_of")}
        say({"name": runner.name, "versions": runner.versions, **can})
        for line in sys.stdin:
            try:
                say(reply(runner, json.loads(line)))
            except Exception as error:
                say(one_line(error))
