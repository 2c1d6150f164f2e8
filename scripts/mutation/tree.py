"""A copy of the checkout in which faults are planted, and pytest in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .mutant import Mutant

CAUGHT, PASSED, NONE_COLLECTED = 1, 0, 5  # exit statuses of pytest
# By what runs them: `make test`, `.ci/run` besides, and `make test-all` besides.
SETS = {
    "fast": "not slow and not nightly and not gpu",
    "ci": "slow and not nightly and not gpu",
    "all": "nightly and not gpu",
}
# In seconds; a fault that makes a loop endless counts as caught.
LONGEST = 3600
# Plugins that no test uses, and that take longer to import than many tests to run.
PLUGINS = tuple(f"-pno:{name}" for name in ("schemathesis", "anyio", "hypothesispytest"))


class BrokenRunError(Exception):
    """Raised if pytest ended without tests that pass or fail."""


class Tree:
    """A copy of the tracked files as they are in the checkout, committed or not.

    cache: pytest's, which copies share. every: run on after the first failure.
    """

    def __init__(self, checkout: Path, folder: Path, cache: Path, every: bool = False) -> None:
        self.root = folder / "specexport"
        self._options = ["-o", f"cache_dir={cache}", *(() if every else ("-x",))]
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, check=True, capture_output=True).stdout
        for name in filter(None, os.fsdecode(listed).split("\0")):
            if (checkout / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.root / name)
        self._environment = os.environ | {
            "PYTHONPATH": str(folder),  # before what is installed
            "PYTHONDONTWRITEBYTECODE": "1",  # a file that changes twice within a second would look unchanged
            "TOKENIZERS_PARALLELISM": "false",
        }

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        path, text = self.root / mutant.file, mutant.planted(self.root)
        before = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(before, encoding="utf-8")

    def run(self, tests: Sequence[str], marks: str, workers: str = "0") -> list[str]:
        """The tests that failed, at most the first unless `every`. Raises `BrokenRunError` if pytest ran none."""
        command = [sys.executable, "-m", "pytest", *PLUGINS, *self._options, "-rfE", "--tb=no", "-n", workers]
        command += ["--dist", "worksteal", "-m", marks, *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=LONGEST,
                encoding="utf-8",
            )
        except subprocess.TimeoutExpired:
            return [f"no end after {LONGEST} s"]
        if done.returncode not in (CAUGHT, PASSED, NONE_COLLECTED):
            raise BrokenRunError(f"pytest ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        found = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return found or ["a test without a name"] if done.returncode == CAUGHT else []
