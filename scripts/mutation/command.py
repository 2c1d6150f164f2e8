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
from .tree import FAST, SLOW, BrokenRunError, Tree

CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if every mutant was caught, 1 if one was not, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument(
        "--set",
        choices=("fast", "all"),
        default="all",
        help="tests that may catch a mutant: those of `make test`, or if they do not, all tests (default)",
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
            return _report(tree, chosen, given.set == "all")
        except (StaleMutantError, BrokenRunError) as error:
            print(error, file=sys.stderr)
            return 2


def _report(tree: Tree, mutants: Sequence[Mutant], slow_too: bool) -> int:
    for mutant in mutants:
        mutant.planted(tree.root)  # raises for a stale mutant, before the first run
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(mutants)} mutants; first without any", flush=True)
    whole = tree.run(tests, FAST, workers="auto")
    if whole.failed:
        raise BrokenRunError(f"{whole.first} fails without any mutant; mend that first")
    caught = {"fast": 0, "slow": 0, "none": 0}
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        start = time.monotonic()
        with tree.with_fault(mutant):
            by, first = _caught_by(tree, mutant, slow_too)
        caught[by] += 1
        print(f"{mutant.name:{width}}  {by:4}  {time.monotonic() - start:4.0f} s  {first}", flush=True)
    print(f"caught by the fast set {caught['fast']}, by the slow set {caught['slow']}, by none {caught['none']}")
    return int(caught["none"] > 0)


def _caught_by(tree: Tree, mutant: Mutant, slow_too: bool) -> tuple[str, str]:
    """(the set of tests, the first test that failed). The most likely tests run first, then the whole set."""
    for by, marks in (("fast", FAST), ("slow", SLOW))[: 1 + slow_too]:
        for tests, workers in ((mutant.tests, "0"), ((), "auto")):
            outcome = tree.run(tests, marks, workers)
            if outcome.failed:
                return by, outcome.first
    return "none", ""
