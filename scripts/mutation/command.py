"""The command `scripts/mutants`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .catalogue import MUTANTS
from .mutant import Mutant, StaleMutantError
from .tree import SETS, BrokenRunError, Tree

CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if every mutant was caught, 1 if one was not, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument(
        "--set",
        choices=tuple(SETS),
        default="all",
        help="tests that may catch a mutant: those of `make test`, of `.ci/run`, or all (default), in turn",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, by default every one of them")
    given = parser.parse_args(arguments)
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in given.names if name not in known]
    if unknown:
        print(f"there is no mutant {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in given.names] or list(MUTANTS)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(CHECKOUT, Path(folder))
        try:
            return _report(tree, chosen, tuple(SETS)[: tuple(SETS).index(given.set) + 1])
        except (StaleMutantError, BrokenRunError) as error:
            print(error, file=sys.stderr)
            return 2


def _report(tree: Tree, mutants: Sequence[Mutant], sets: Sequence[str]) -> int:
    for mutant in mutants:
        mutant.planted(tree.root)  # raises for a stale mutant, before the first run
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(mutants)} mutants; first without any", flush=True)
    whole = tree.run(tests, SETS["fast"], workers="auto")
    if whole.failed:
        raise BrokenRunError(f"{whole.first} fails without any mutant; mend that first")
    caught = dict.fromkeys((*sets, "none"), 0)
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        start = time.monotonic()
        with tree.with_fault(mutant):
            by, first = _caught_by(tree, mutant, sets)
        caught[by] += 1
        print(f"{mutant.name:{width}}  {by:4}  {time.monotonic() - start:4.0f} s  {first}", flush=True)
    print("caught by " + ", ".join(f"{name} {count}" for name, count in caught.items()))
    return int(caught["none"] > 0)


def _caught_by(tree: Tree, mutant: Mutant, sets: Sequence[str]) -> tuple[str, str]:
    """(the set of tests, the first test that failed). The most likely tests run first, then the whole set."""
    for by in sets:
        for tests, workers in ((mutant.tests, "0"), ((), "auto")):
            outcome = tree.run(tests, SETS[by], workers)
            if outcome.failed:
                return by, outcome.first
    return "none", ""
