"""Faults in the code that reads and checks bundles and stages."""

from __future__ import annotations

from .mutant import Mutant

OPENING, STRICT, STAGES = "bundle/opening.py", "strict.py", "exporter/stage_cache.py"
TESTS = ("tests/test_bundle.py",)

BUNDLE = (
    Mutant(
        "piped input is read in the locale's encoding",
        "cli/streams.py",
        'sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")',
        "pass",
        ("tests/test_cli_streams.py",),
    ),
    Mutant(
        "a character that the terminal lacks ends a command",
        "cli/streams.py",
        "sys.stdout.reconfigure(errors=REPLACING)",
        "pass",
        ("tests/test_cli_streams.py",),
    ),
    Mutant(
        "a byte order mark is text",
        "cli/streams.py",
        'file.read().removeprefix("\\ufeff")',
        "file.read()",
        ("tests/test_cli_streams.py",),
    ),
    Mutant(
        "an equals sign splits a path that exists",
        "exporter/options.py",
        "or not before or _exists(given):",
        "or not before:",
        ("tests/exporter/test_put_draft.py",),
    ),
    Mutant(
        "messages with tools get the default template",
        "runtime/text/encode.py",
        "self._tools_template = _template(bundle, text.tools_template) or self._template",
        "self._tools_template = self._template",
        ("tests/exporter/checkpoints/test_chat_templates.py",),
    ),
    Mutant(
        "templates that are left out are not named",
        "exporter/checkpoints/chat_templates.py",
        "left_out = [name for name in names if name not in (DEFAULT, TOOL_USE)]",
        "left_out: list[str] = []",
        ("tests/exporter/checkpoints/test_chat_templates.py",),
    ),
    Mutant(
        "the first id without an embedding counts as one that has it",
        "exporter/checkpoints/chat_templates.py",
        "if token >= size}",
        "if token > size}",
        ("tests/exporter/checkpoints/test_chat_templates.py",),
    ),
    Mutant(
        "a manifest holds the checkpoint's path",
        "exporter/export_model.py",
        '{"source": name_of(checkpoint.source)}, SPEC)',
        '{"source": checkpoint.source}, SPEC)',
        ("tests/test_telltale.py",),
    ),
    Mutant(
        "push uploads the paths of an earlier version",
        "editing/push.py",
        "manifest_text(without_paths(bundle.manifest))",
        "manifest_text(bundle.manifest)",
        ("tests/editing/test_push.py",),
    ),
    Mutant(
        "few requests that were partly slower are called faster",
        "calibration/verdicts/verdict.py",
        "if judged.speedup.low > 1 and judged.p10 >= floor:",
        "if judged.speedup.low > 1:",
        ("tests/calibration/reporting/test_story.py",),
    ),
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
        ("tests/exporter/test_stage_cache.py",),
    ),
    Mutant(
        "sources that the exporter imports from elsewhere are no part of a stage's key",
        STAGES,
        "        left |= _imported(path) - found",
        "        left |= set()",
        ("tests/exporter/test_stage_cache.py",),
    ),
)
