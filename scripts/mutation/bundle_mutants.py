"""Faults in the code that reads and checks bundles and stages."""

from __future__ import annotations

from .mutant import Mutant

OPENING, STRICT, STAGES = "bundle/opening.py", "strict.py", "exporter/stage_cache.py"
TESTS = ("tests/test_bundle.py",)

BUNDLE = (
    Mutant(
        "piped input is read in the locale's encoding",
        "cli/group.py",
        'sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")',
        "pass",
        ("tests/test_cli_streams.py",),
    ),
    Mutant(
        "a character that the terminal lacks ends a command",
        "cli/group.py",
        "sys.stdout.reconfigure(errors=REPLACING)",
        "pass",
        ("tests/test_cli_streams.py",),
    ),
    Mutant(
        "a byte order mark is text",
        "cli/options.py",
        'file.read().removeprefix("\\ufeff")',
        "file.read()",
        ("tests/test_cli_streams.py",),
    ),
    Mutant(
        "an equals sign splits a path that exists",
        "exporter/options.py",
        'name is not None or not equals or "/" in before or not before or _exists(given)',
        'name is not None or not equals or "/" in before or not before',
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
        "token >= size",
        "token > size",
        ("tests/exporter/checkpoints/test_chat_templates.py",),
    ),
    Mutant(
        "a manifest holds the checkpoint's path",
        "exporter/export_model.py",
        '{"source": name_of(checkpoint.source)}',
        '{"source": checkpoint.source}',
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
        ("tests/calibration/reporting/test_answer.py",),
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
        'not name.isprintable() or pure.is_absolute() or ".." in pure.parts or "\\\\" in name',
        'not name.isprintable() or pure.is_absolute() or "\\\\" in name',
        TESTS,
    ),
    Mutant(
        "older schemas are read",
        OPENING,
        "not OLDEST_SCHEMA <= version <= SCHEMA_VERSION",
        "version > SCHEMA_VERSION",
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
    Mutant(
        "a digest of a file's last block has what was before it", "bundle/files.py", "buffer[:count]", "buffer", TESTS
    ),
    Mutant(
        "a span that ends with the pass is too short for it", "bundle/contract.py", "span >= end", "span > end", TESTS
    ),
    Mutant(
        "a sequence may fill the row behind a quantized pass",
        "bundle/manifest.py",
        "self.contract.capacity - spare",
        "self.contract.capacity",
        TESTS,
    ),
    Mutant(
        "a manifest is written in the schema that it was read in",
        "bundle/upgrade.py",
        'row | {"schema_version": SCHEMA_VERSION, "target": target, "drafts": drafts, "rules": rules}',
        'row | {"target": target, "drafts": drafts, "rules": rules}',
        TESTS,
    ),
    Mutant(
        "an error that is not a number is within its tolerance",
        "bundle/proofs.py",
        "self.max_error <= (self.tolerance or 0.0)",
        "not self.max_error > (self.tolerance or 0.0)",
        TESTS,
    ),
    Mutant("a draft may be called lookup", "bundle/drafts.py", "if name in RESERVED:", "if False:", TESTS),
    Mutant(
        "the token after the last is banned",
        "bundle/defaults.py",
        "0 <= token < vocab_size",
        "0 <= token <= vocab_size",
        TESTS,
    ),
    Mutant(
        "a cache row has keys only",
        "bundle/models.py",
        "2 * ELEMENT_BYTES[contract.precision]",
        "ELEMENT_BYTES[contract.precision]",
        TESTS,
    ),
    Mutant(
        "an older bundle's retired rules are refused",
        "bundle/upgrade.py",
        '[rule for rule in row["rules"] if rule["rule"] != "adjust"]',
        'row["rules"]',
        TESTS,
    ),
)
