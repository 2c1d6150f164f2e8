"""Faults in the code that reads and checks bundles and stages."""

from __future__ import annotations

from .mutant import Mutant

OPENING, STRICT, STAGES = "bundle/opening.py", "strict.py", "exporter/stage_cache.py"
TESTS = ("tests/test_bundle.py",)
SEVERAL = ("tests/runtime/test_several_drafts.py",)
BUNDLE = (
    Mutant(
        "two drafts may have one name",
        "bundle/manifest.py",
        "if len(set(self.draft_names)) < len(self.drafts):",
        "if not self.drafts and self.draft_names:",
        TESTS,
    ),
    Mutant(
        "a model needs no proof",
        "bundle/manifest.py",
        "if not model.proofs or any(",
        "if any(",
        TESTS,
    ),
    Mutant(
        "costs of a draft are measured at another's speed of the host",
        "calibration/drafted.py",
        "name: one.like(next(iter(costs.values())))",
        "name: one",
        ("tests/calibration/test_drafted.py",),
    ),
    Mutant(
        "costs of another draft are taken",
        "runtime/policy/files.py",
        "if value.bundle != bundle_identity(bundle, draft):",
        "if value.bundle != bundle_identity(bundle, draft) and draft is None:",
        SEVERAL,
    ),
    Mutant(
        "only the first draft is also called model alone",
        "runtime/drafting/names.py",
        'name.split("+")',
        "[name]",
        SEVERAL,
    ),
    Mutant(
        "routing.json names what no session knows",
        "runtime/policy/files.py",
        "return routing.renamed(",
        "return routing or routing.renamed(",
        ("tests/runtime/test_routed_sessions.py",),
    ),
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
        'sys.stdout.reconfigure(errors="replace")',
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
        'not equals or "/" in before or not before or _exists(text)',
        'not equals or "/" in before or not before',
        ("tests/exporter/test_additional_drafts.py",),
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
        "exporter/bundle_files.py",
        "left_out = [name for name in names if name not in (DEFAULT, TOOL_USE)]",
        "left_out: list[str] = []",
        ("tests/exporter/checkpoints/test_chat_templates.py",),
    ),
    Mutant(
        "the first id without an embedding counts as one that has it",
        "exporter/checkpoints/checkpoint.py",
        "if 0 < size <= token",
        "if 0 < size < token",
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
        "few requests that were partly slower are called faster",
        "calibration/verdicts/verdict.py",
        "if judged.speedup.low > 1 and judged.p10 >= floor:",
        "if judged.speedup.low > 1:",
        ("tests/calibration/test_report.py",),
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
        "version != SCHEMA_VERSION",
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
        "    if present != recorded:",
        "    if not present:",
        ("tests/exporter/test_stage_cache.py",),
    ),
    Mutant(
        "sources that the exporter imports from elsewhere are no part of a stage's key",
        STAGES,
        "        left |= _imported(path) - known",
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
        "an error that is not a number is within its tolerance",
        "bundle/models.py",
        "self.max_error <= (self.tolerance or 0.0)",
        "not self.max_error > (self.tolerance or 0.0)",
        TESTS,
    ),
    Mutant("a draft may be called lookup", "bundle/drafts.py", "if name in RESERVED:", "if False:", TESTS),
    Mutant(
        "the token after the last is banned",
        "bundle/manifest.py",
        "0 <= token < vocab_size",
        "0 <= token <= vocab_size",
        TESTS,
    ),
    Mutant(
        "a cache row has keys only",
        "bundle/models.py",
        "2 * ELEMENT_BYTES[contract.caches]",
        "ELEMENT_BYTES[contract.caches]",
        TESTS,
    ),
    Mutant(
        "a file that was replaced is lost in a power cut",
        "atomic.py",
        "sync(path.parent)",
        "pass",
        ("tests/test_atomic.py",),
    ),
    Mutant(
        "a manifest is in place before its content is on the disk",
        "editing/replace_manifest.py",
        "sync(scratch / MANIFEST)",
        "pass",
        ("tests/editing/test_replace_manifest.py",),
    ),
)
