"""Tries all families, each in its own process with a time limit; results are kept in a table."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import transformers

from .attempt import Outcome, attempt

RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Results:
    """transformers: the version that was used. families: outcomes by model type."""

    transformers: str
    families: dict[str, Outcome]


def run(family: str, seconds: float) -> Outcome:
    """The outcome of a family; if its process ends without one, how it ended."""
    context = multiprocessing.get_context("fork")  # the slowest imports are already done
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(family, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return Outcome("unmade", f"not done within {seconds:.0f} s")
        outcome: Outcome = ours.recv()
        return outcome
    except EOFError:
        process.join()
        return Outcome("unmade", f"the process ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _answer(family: str, connection: Connection) -> None:
    connection.send(attempt(family))


def sweep(families: Iterable[str], path: Path, seconds: float, again: bool) -> None:
    """Try the families that are not in the table at `path`, or with `again` all of them; saves it after each family."""
    results = read(path)
    if results.transformers != transformers.__version__:
        results = Results(transformers.__version__, {})
    for family in families:
        if family in results.families and not again:
            continue
        outcome = run(family, seconds)
        results.families[family] = outcome
        print(f"{family:28} {outcome.status:8} {outcome.reason}", flush=True)
        _write(path, results)


def read(path: Path) -> Results:
    if not path.is_file():
        return Results(transformers.__version__, {})
    kept = json.loads(path.read_text(encoding="utf-8"))
    return Results(kept["transformers"], {family: Outcome(**entry) for family, entry in kept["families"].items()})


def _write(path: Path, results: Results) -> None:
    """A family to a line."""
    families = sorted(results.families.items())
    lines = ",\n".join(f"{json.dumps(family)}: {json.dumps(asdict(outcome))}" for family, outcome in families)
    partial = path.with_suffix(".partial")
    version = json.dumps(results.transformers)
    partial.write_text(f'{{"transformers": {version}, "families": {{\n{lines}\n}}}}\n', encoding="utf-8")
    partial.replace(path)
