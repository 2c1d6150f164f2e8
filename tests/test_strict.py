from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from specexport.errors import BundleError
from specexport.strict import parse, read_json
from support.refusals import refused


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
    with refused(BundleError, field="file.choice"):
        parse(Outer, GOOD | {"choice": "c"}, "file")
    for spare in (
        {"width": 0},
        {},
        [],
    ):
        with refused(BundleError, "file.spare", field=(None, "file.spare", "file.spare.width")):
            parse(Outer, GOOD | {"spare": spare}, "file")


def test_an_int_beyond_all_floats_is_no_float() -> None:
    with refused(BundleError, "100000000000000000000000000000000000000000000000000000000000", field="file.ratio"):
        parse(Outer, GOOD | {"ratio": 10**400}, "file")


def test_an_integer_is_a_float_but_not_the_other_way() -> None:
    assert parse(Outer, GOOD | {"ratio": 2}, "file").ratio == 2.0
    with refused(BundleError, "2.0", field="file.inner.width"):
        parse(Outer, GOOD | {"inner": {"width": 2.0}}, "file")


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"name": 1},
        {"ratio": "1"},
        {"ratio": True},
        {"mode": "c"},
        {"inner": [1]},
        {"inner": {"width": True}},
        {"inner": {"width": 0}},
        {"inner": {}},
        {"items": {"width": 1}},
        {"items": [{"width": 1}, {"width": "2"}]},
        {"table": [1]},
        {"table": {"k": "v"}},
        {"note": 3},
    ],
)
def test_refusals_name_the_key(change: dict[str, Any]) -> None:
    with refused(
        BundleError,
        field=("file.inner.width", "file.items[1].width", "file.table.k", *(f"file.{name}" for name in change)),
    ):
        parse(Outer, GOOD | change, "file")


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_value_that_is_no_object_is_refused(value: object) -> None:
    with refused(BundleError, "object", field="file"):
        parse(Outer, value, "file")


def test_read_json_names_a_missing_file(tmp_path: Path) -> None:
    with refused(BundleError, "specexport build", code="bundle_not_found"):
        read_json(tmp_path / "gone.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not json", b"\xff\xfe", b"[" * 100_000, b"1" * 5000],
    ids=["empty", "cut", "words", "not UTF-8", "deep", "long number"],
)
def test_read_json_names_a_file_that_is_not_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"bad\.json cannot be read as JSON") as caught:  # then this Python's words
        read_json(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_a_key_that_appears_twice(tmp_path: Path) -> None:
    """As of a route that was copied in policy.json and kept its name."""
    (tmp_path / "policy.json").write_text('{"routes": {"code": 1, "prose": 2, "code": 3}}')
    with refused(BundleError, "policy.json", "'code'", "delete it"):
        read_json(tmp_path / "policy.json", "delete it")


def test_read_json_of_a_folder(tmp_path: Path) -> None:
    with refused(BundleError, "21"):
        read_json(tmp_path)
