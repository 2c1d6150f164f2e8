"""The command `scripts/mutants`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from difflib import get_close_matches
from pathlib import Path
from queue import SimpleQueue

from .catalogue import MUTANTS
from .mutant import Mutant, StaleMutantError
from .tree import SETS, BrokenRunError, Tree

CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if every mutant was caught, 1 if one was not, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument(
        "--set",
        choices=("named", *SETS),
        default="all",
        help="tests that may catch a mutant: those of `make test` in the files that it names; all of `make test`; "
        "those of `.ci/run` besides; or all (default), each if the ones before do not",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many mutants at a time (default: 1)")
    parser.add_argument("--every", action="store_true", help="run on after a failure; print every test that fails")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, or what their files' paths begin with")
    given = parser.parse_args(arguments)
    for name in given.names:
        if not any(_is_named(mutant, name) for mutant in MUTANTS):
            known = [one.name for one in MUTANTS]
            close = [one for one in known if name in one] or get_close_matches(name, known, cutoff=0.3)
            print(f"there is no mutant {name!r}; like it are {', '.join(map(repr, close))}", file=sys.stderr)
            return 2
    chosen = [one for one in MUTANTS if not given.names or any(_is_named(one, name) for name in given.names)]
    names = list(SETS)
    sets = [SETS[name] for name in names[: 1 if given.set == "named" else names.index(given.set) + 1]]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        places = [Path(folder) / str(index) for index in range(given.jobs)]
        cache = Path(folder) / "cache"
        with suppress(FileNotFoundError):  # what is built already; a copy, since a fault may build something else
            shutil.copytree(CHECKOUT / ".pytest_cache", cache)
        trees = [Tree(CHECKOUT, place, cache, given.every) for place in places]
        try:
            return _report(trees, chosen, sets, whole=given.set != "named")
        except (StaleMutantError, BrokenRunError) as error:
            print(error, file=sys.stderr)
            return 2


def _is_named(mutant: Mutant, name: str) -> bool:
    return name == mutant.name or mutant.file.startswith(name)


def _report(trees: Sequence[Tree], mutants: Sequence[Mutant], sets: Sequence[str], whole: bool) -> int:
    for mutant in mutants:
        mutant.planted(CHECKOUT)  # raises for a stale mutant, before the first run
    print(f"{len(mutants)} mutants; then the tests that caught one run without any", flush=True)
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def tried(mutant: Mutant) -> tuple[str, float, Sequence[str]]:
        tree, start = free.get(), time.monotonic()
        with ExitStack() as stack:
            stack.callback(free.put, tree)
            stack.enter_context(tree.with_fault(mutant))
            by, failed = _caught_by(tree, mutant, sets, whole, alone=len(trees) == 1)
            return by, time.monotonic() - start, failed

    caught, by_tests = Counter[str](), set[str]()
    width = max(len(mutant.name) for mutant in mutants)
    with ThreadPoolExecutor(len(trees)) as pool:
        for mutant, (by, seconds, failed) in zip(mutants, pool.map(tried, mutants), strict=True):
            caught[by] += 1
            by_tests.update(test.partition("[")[0] for test in failed if test.startswith("tests"))
            print(f"{mutant.name:{width}}  {by:4}  {seconds:4.0f} s  {' '.join(failed)}", flush=True)
    wrong = trees[0].run(sorted(by_tests), "not gpu", workers="auto") if by_tests else []
    if wrong:
        raise BrokenRunError(f"{wrong[0]} fails without any mutant too; mend that, then run again what it caught")
    print(f"caught by the fast set {caught['fast']}, by the slow set {caught['slow']}, by none {caught['none']}")
    return int(caught["none"] > 0)


def _caught_by(tree: Tree, mutant: Mutant, sets: Sequence[str], whole: bool, alone: bool) -> tuple[str, Sequence[str]]:
    """(the set of tests, those that failed). The tests that the mutant names run first, then the whole set."""
    for marks in sets:
        for tests in (mutant.tests, ())[: 1 + whole]:
            failed = tree.run(tests, marks, workers="auto" if alone and not tests else "0")
            if failed:
                return next(name for name, one in SETS.items() if one == marks), failed
    return "none", ()
