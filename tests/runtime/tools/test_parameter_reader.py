"""Values that are written one by one, as JSON: what the model wrote, valid JSON, and every letter read once."""

from __future__ import annotations

import json

import pytest
from specexport.runtime.tools.calls import CallReader, joined
from specexport.runtime.tools.kinds import Kind
from specexport.runtime.tools.parameter_reader import JsonScanner, ParametersReader
from specexport.runtime.tools.tool import Tool
from specexport.runtime.tools.tool_format import Parameters

TAGS = Parameters("\n<p=", "\n", ">\n", ">\n", "\n</p>\n", "\n</p>\n", "<p=")
PYTHON = Parameters("(", "(", "='", "=", "'", "", ", ", python=True)
TEXTS = ["5", "true", "NaN", '"5"', "", "01", "a\n</p> <\\b", "null and", "nul", "None"]
JSONS = [
    "0.1000000000000000055",
    "1e999",
    "100000000000000000000",
    '[1e400, 1E5, 1.10, "\\ud800", "\\n</p>\\n"]',
    "null",
]


def value_of(parameters: Parameters, written: str, kind: Kind, closing: str = "</f>") -> str:
    """The object, written with one key, letter by letter; what was told at every place is how it begins."""
    whole, left = ParametersReader(parameters, closing, {"a": kind}).add(written + closing)
    assert left == closing
    reader, held, found = ParametersReader(parameters, closing, {"a": kind}), "", ""
    for letter in written + closing:
        more, held = reader.add(held + letter)
        found += more
        assert whole.startswith(found)
    assert (found, held, reader.done) == (whole, "<" + closing[1:] if closing[0] == "<" else closing, True)
    return whole


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["text", "choice", "optional"])
def test_a_text_is_a_text(text: str, kind: Kind) -> None:
    assert value_of(TAGS, f"\n<p=a>\n{text}\n</p>\n", kind) == json.dumps({"a": text}, ensure_ascii=False)
    if "'" not in text:
        assert value_of(PYTHON, f"(a='{text}'", kind, ")") == json.dumps({"a": text}, ensure_ascii=False)


@pytest.mark.parametrize("text", JSONS)
@pytest.mark.parametrize("kind", ["json", "any"])
def test_json_is_the_models_own(text: str, kind: Kind) -> None:
    if kind == "json" or "</p>" not in text:
        assert value_of(TAGS, f"\n<p=a>\n{text}\n</p>\n", kind) == f'{{"a": {text}}}'
    assert value_of(PYTHON, f"(a={text}", kind, ")") == f'{{"a": {text}}}'


class Counted(str):
    """Counts what is searched of it."""

    searched = 0
    __slots__ = ()

    def find(self, text: str, *start: int) -> int:  # type: ignore[override]
        Counted.searched += len(self) - (start[0] if start else 0)
        return super().find(text, *start)


@pytest.mark.parametrize("kind", ["text", "json", "any", "optional"])
def test_every_letter_is_read_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """But those that an end marker may begin with."""
    read, original = [0], JsonScanner.read

    def counted(scanner: JsonScanner, letter: str) -> None:
        read[0] += 1
        original(scanner, letter)

    monkeypatch.setattr(JsonScanner, "read", counted)
    monkeypatch.setattr(Counted, "searched", 0)
    reader, pieces = ParametersReader(TAGS, "</f>", {"a": kind}), [", 12"] * 2000
    found, held = reader.add("\n<p=a>\n[0")
    for piece in pieces:
        more, held = reader.add(Counted(held + piece))
        found += more
        if kind != "any":  # which may be either, up to its end
            assert len(held) < len("\n</p>\n")
    more, held = reader.add(held + "]\n</p>\n</f>")
    assert json.loads(found + more) == {
        "a": f"[0{''.join(pieces)}]" if kind in ("text", "optional") else [0, *[12] * 2000]
    }
    size = sum(map(len, pieces))
    assert read[0] <= 2 * size
    assert Counted.searched <= 2 * len("\n</p>\n") * size


def test_texts_and_json_come_as_they_are_written() -> None:
    tool = Tool("f", None, {"properties": {"a": {"type": "string"}, "b": {"type": "array"}}})
    from support.tool_forms import TAGGED

    reader = CallReader(TAGGED, [tool])
    assert joined(reader.add("<call>f\n<p=a>\nOn"))[1] == [("f", '{"a": "On')]
    parts = reader.add('e "\n</')
    assert [part.text for part in parts] == ['e \\"']  # type: ignore[union-attr]
    parts = reader.add("p>\n<p=b>\n[1, [")
    assert [part.text for part in parts] == ['", "b": [1, [']  # type: ignore[union-attr]
    parts = reader.add("]]\n</p>\n</f>")
    assert [part.text for part in parts] == ["]]}"]  # type: ignore[union-attr]
    assert reader.whole
