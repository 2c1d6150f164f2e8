"""Errors carry facts: a code and a field for programs, and one line for people."""

from __future__ import annotations

import ast
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from specexport import errors
from specexport.errors import SpecExportError, reason_of
from specexport.serve.wire.errors import CODES

ROOT = Path(errors.__file__).parent
PRODUCT = ("bundle", "calibration", "cli", "editing", "engines", "exporter", "integrations", "runtime", "serve")
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SpecExportError) and kind is not SpecExportError
}
ROW = re.compile(r"\| `(\w+Error)`[^|]* \| ([^|]+) \|")


def test_an_error_is_one_line_and_keeps_the_names_of_files() -> None:
    for name in ("Größe", "報告\u3000書", "9.41.00\u202fAM", "a\u200cb", "a\u00a0b"):
        assert str(SpecExportError(f"{name} is missing")) == f"{name} is missing"
    for name in ("one\ntwo", "one\rtwo", "one\u2028two", "one\x85two", "\x1b[31mred", "\u202eback", "\ud800"):
        assert str(SpecExportError(name)).isprintable()


def test_the_code_and_the_field_are_the_class_s_or_the_raiser_s() -> None:
    assert (errors.BundleError("x").code, errors.BundleError("x").field) == ("invalid_bundle", None)
    assert (errors.GrammarError("x").code, errors.GrammarError("x").field) == ("invalid_schema", "grammar")
    refined = errors.ParameterError("top_p is 2", "top_p", code="odd")
    assert (refined.code, refined.field) == ("odd", "top_p")
    assert (errors.ParameterError.code, errors.ParameterError.field) == ("invalid_value", None)


def test_a_grammar_s_kind_comes_before_its_reason() -> None:
    error = errors.GrammarError("it is empty", kind="regex", line=3)
    assert str(error) == "invalid regex: it is empty"
    assert (error.reason, error.kind, error.line) == ("it is empty", "regex", 3)


def test_workers_send_errors_with_their_facts() -> None:
    sent = pickle.loads(pickle.dumps(errors.ParameterError("top_p is 2", "top_p", code="odd")))
    assert (str(sent), sent.code, sent.field) == ("top_p is 2", "odd", "top_p")


def test_the_docs_list_every_code_of_every_error() -> None:
    """Those of the classes, and those that the product's code raises."""
    raised = defaultdict(set, {name: {kind.code} for name, kind in KINDS.items()})
    for name, code in refined():
        raised[name].add(code)
    text = (ROOT / "docs/embedding.md").read_text(encoding="utf-8").partition("## Errors")[2]
    listed = {name: re.findall(r"`(\w+)`", codes) for name, codes in ROW.findall(text)}
    assert {name: set(codes) for name, codes in listed.items()} == raised
    assert {name: codes[0] for name, codes in listed.items()} == {name: kind.code for name, kind in KINDS.items()}


def test_clients_are_told_only_codes_of_the_table() -> None:
    """Of what a request is refused for, the code goes out as it is (`of_engine`); all others become another."""
    passed = {name for name, kind in KINDS.items() if issubclass(kind, errors.ParameterError | errors.QueueError)}
    told = {KINDS[name].code for name in passed} | {code for name, code in refined() if name in passed}
    assert {"invalid_value", "grammar_failed", "queue_timeout"} < told
    assert told - set(CODES) == set()


def test_an_error_s_code_is_given_by_name() -> None:
    """Second comes the field."""
    codes = set(CODES) | {kind.code for kind in KINDS.values()}
    fields = [one.value for _, call in raised() for one in call.args[1:] if isinstance(one, ast.Constant)]
    assert codes.isdisjoint(fields)


def refined() -> Iterator[tuple[str, str]]:
    """(class, code) of each code that is written where an error is raised."""
    for name, node in raised():
        codes = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        codes += node.args[:1] if name == "QueueError" else []
        yield from (
            (name, one.value)
            for code in codes
            for one in ast.walk(code)
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )


def raised() -> Iterator[tuple[str, ast.Call]]:
    """(class, call) of each error that the product's code makes."""
    paths = [*ROOT.glob("*.py"), *(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                yield node.func.id, node


@pytest.mark.parametrize("name", KINDS)
def test_every_error_has_a_code_of_its_own_form(name: str) -> None:
    assert re.fullmatch("[a-z]+(_[a-z]+)+|stale", KINDS[name].code)


def test_an_interrupt_of_an_import_stays_an_interrupt() -> None:
    """pybind11 raises an `ImportError` from it, which says nothing of a package."""
    error = ImportError("initialization failed")
    assert reason_of(error) == "initialization failed"
    error.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reason_of(error)
