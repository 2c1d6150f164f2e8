from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from specexport.errors import BundleError
from specexport.strict import parse, read_json


@dataclass(frozen=True)
class Inner:
    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("width must be at least 1")


@dataclass(frozen=True)
class Outer:
    name: str
    ratio: float
    mode: Literal["a", "b"]
    inner: Inner
    items: tuple[Inner, ...]
    table: dict[str, int]
    note: str | None
    spare: Inner | None
    choice: Literal["a", "b"] | None


GOOD: dict[str, Any] = {
    "name": "x",
    "ratio": 0.5,
    "mode": "a",
    "inner": {"width": 1},
    "items": [{"width": 2}, {"width": 3}],
    "table": {"k": 1},
    "note": None,
    "spare": None,
    "choice": None,
}


def test_parses_nested_dataclasses_and_back() -> None:
    parsed = parse(Outer, GOOD, "file")
    assert parsed == Outer("x", 0.5, "a", Inner(1), (Inner(2), Inner(3)), {"k": 1}, None, None, None)
    assert parse(Outer, asdict(parsed) | {"items": [{"width": 2}, {"width": 3}]}, "file") == parsed


def test_an_object_may_be_missing_but_is_checked_where_it_is_there() -> None:
    assert parse(Outer, GOOD, "file").spare is None
    assert parse(Outer, GOOD | {"spare": {"width": 4}}, "file").spare == Inner(4)
    assert parse(Outer, GOOD | {"choice": "b"}, "file").choice == "b"
    with pytest.raises(BundleError, match=r"file\.choice: found \"c\", expected one of 'a', 'b'"):
        parse(Outer, GOOD | {"choice": "c"}, "file")
    for spare, message in (
        ({"width": 0}, r"file\.spare: width must be at least 1"),
        ({}, r"file\.spare: the key 'width'"),
        ([], "expected an"),
    ):
        with pytest.raises(BundleError, match=message):
            parse(Outer, GOOD | {"spare": spare}, "file")


def test_an_integer_is_a_float_but_not_the_other_way() -> None:
    assert parse(Outer, GOOD | {"ratio": 2}, "file").ratio == 2.0
    with pytest.raises(BundleError, match=r"file\.inner\.width: found 2\.0, expected a value of type int"):
        parse(Outer, GOOD | {"inner": {"width": 2.0}}, "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, r"file: unknown key 'extra'; known are name, ratio, mode"),
        ({"name": 1}, r"file\.name: found 1, expected a value of type str"),
        ({"ratio": "1"}, r'file\.ratio: found "1", expected a value of type float'),
        ({"ratio": True}, r"file\.ratio: found true, expected a value of type float"),
        ({"mode": "c"}, r"file\.mode: found \"c\", expected one of 'a', 'b'"),
        ({"inner": [1]}, r"file\.inner: found \[1\], expected an object"),
        ({"inner": {"width": True}}, r"file\.inner\.width: found true, expected a value of type int"),
        ({"inner": {"width": 0}}, r"file\.inner: width must be at least 1"),
        ({"inner": {}}, r"file\.inner: the key 'width' is missing"),
        ({"items": {"width": 1}}, r"file\.items: found .* expected a list"),
        ({"items": [{"width": 1}, {"width": "2"}]}, r"file\.items\[1\]\.width: found \"2\""),
        ({"table": [1]}, r"file\.table: found \[1\], expected an object"),
        ({"table": {"k": "v"}}, r"file\.table\.k: found \"v\""),
        ({"note": 3}, r"file\.note: found 3, expected a value of type str"),
    ],
)
def test_refusals_name_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message) as caught:
        parse(Outer, GOOD | change, "file")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_value_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(BundleError, match=r"file: found .* expected an object"):
        parse(Outer, value, "file")


def test_read_json_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"gone\.json is missing"):
        read_json(tmp_path / "gone.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not json", b"\xff\xfe", b"[" * 100_000, b"1" * 5000],
    ids=["empty", "cut", "words", "not UTF-8", "deep", "long number"],
)
def test_read_json_names_a_file_that_is_not_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"bad\.json cannot be read as JSON") as caught:
        read_json(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_read_json_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read as JSON"):
        read_json(tmp_path)
