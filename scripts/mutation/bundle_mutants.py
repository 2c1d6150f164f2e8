"""Faults in the code that reads and checks bundles and stages."""

from __future__ import annotations

from .mutant import Mutant

OPENING, STRICT, STAGES = "bundle/opening.py", "strict.py", "exporter/storage/stage_cache.py"
TESTS = ("tests/test_bundle.py",)

BUNDLE = (
    Mutant(
        "digests are not compared",
        OPENING,
        "if digest != wanted[name].sha256:",
        "if not digest:",
        TESTS,
    ),
    Mutant(
        "a file's size is not compared",
        OPENING,
        "if size != entry.bytes:",
        "if size < 0:",
        TESTS,
    ),
    Mutant(
        "a name may lead out of the bundle",
        OPENING,
        'or ".." in pure.parts or',
        "or",
        TESTS,
    ),
    Mutant(
        "older schemas are read",
        OPENING,
        "not OLDEST_SCHEMA <= version <= SCHEMA_VERSION:",
        "version > SCHEMA_VERSION:",
        TESTS,
    ),
    Mutant(
        "files that no list has",
        OPENING,
        "            if name not in files:",
        "            if not name:",
        TESTS,
    ),
    Mutant(
        "true is a number",
        STRICT,
        '_expect(type(value) is kind, f"a value of type {kind.__name__}", value, where)',
        '_expect(isinstance(value, kind), f"a value of type {kind.__name__}", value, where)',
        ("tests/test_strict.py",),
    ),
    Mutant(
        "unknown keys are passed over",
        STRICT,
        "    if unknown:",
        "    if not names:",
        ("tests/test_strict.py",),
    ),
    Mutant(
        "a harmed stage is used",
        STAGES,
        "    if found != recorded:",
        "    if not found:",
        ("tests/exporter/storage",),
    ),
    Mutant(
        "sources in nested folders are no part of a stage's key",
        STAGES,
        '"exporter/**/*.py"',
        '"exporter/*.py"',
        ("tests/exporter/storage",),
    ),
)
