"""The file of prompts: every way to be wrong is told with its line, and the rest stays usable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from specexport.errors import ParameterError
from specexport.runtime.text.prompt_file import PromptLine, read_prompt_lines
from support.refusals import check, says

GOOD: dict[str, Any] = {"route": "code", "prompt": "def"}


def written(folder: Path, *lines: str | bytes | dict[str, Any]) -> Path:
    path = folder / "prompts.jsonl"
    raw = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in raw))
    return path


def refusal(path: Path, skip_invalid: bool = False) -> ParameterError:
    with pytest.raises(ParameterError) as caught:
        read_prompt_lines(path, skip_invalid)
    assert str(caught.value).isprintable()
    return caught.value


def test_what_a_line_may_be(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = written(
        tmp_path,
        GOOD,
        {"route": "ids", "prompt": [1, 2, 3], "max_new_tokens": 7},
        {"messages": messages, "route": "Gespräch, 中文 2"},
    )
    assert read_prompt_lines(path, False) == (
        [
            PromptLine(1, "code", "def", None),
            PromptLine(2, "ids", [1, 2, 3], 7),
            PromptLine(3, "Gespräch, 中文 2", messages, None),
        ],
        [],
    )


def test_what_is_passed_over(tmp_path: Path) -> None:
    """A byte order mark, lines of blanks, and what ends a line elsewhere; lines keep their numbers."""
    text = json.dumps(GOOD | {"prompt": "a\u2028b"}, ensure_ascii=False)
    path = written(tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r", "", " \t", text, "")
    lines, skipped = read_prompt_lines(path, False)
    assert [(line.line, line.prompt) for line in lines] == [(1, "def"), (4, "a\u2028b")]
    assert skipped == []


BROKEN: list[str | bytes | dict[str, Any]] = [
    "{",
    '{"route": "x", "prompt": ' + "[" * 100_000,
    '{"route": "x", "prompt": [' + "1" * 5000 + "]}",
    "[1]",
    "null",
    b'{"route": "\xff"}',
    {"prompt": "x"},
    GOOD | {"route": ""},
    GOOD | {"route": "  "},
    GOOD | {"route": " code"},
    GOOD | {"route": None},
    GOOD | {"route": 3},
    GOOD | {"route": "a\x1b[31m"},
    GOOD | {"route": "a\nb"},
    GOOD | {"route": "\ud800"},
    {"route": "x"},
    GOOD | {"messages": [{"role": "user"}]},
    GOOD | {"prompt": ""},
    GOOD | {"prompt": []},
    GOOD | {"prompt": None},
    GOOD | {"prompt": 5},
    GOOD | {"prompt": {"0": 1}},
    GOOD | {"prompt": [1, True]},
    GOOD | {"prompt": [1, 2.0]},
    {"route": "x", "messages": []},
    {"route": "x", "messages": "hi"},
    {"route": "x", "messages": ["hi"]},
    {"route": "x", "messages": [{"role": "sytem", "content": "hi"}]},
    GOOD | {"temperature": 1},
    '{"route": "x", "prompt": "a", "prompt": "b"}',
    GOOD | {"max_new_tokens": 0},
    GOOD | {"max_new_tokens": "9"},
    GOOD | {"max_new_tokens": True},
    GOOD | {"max_new_tokens": None},
]


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: repr(line)[:60])
def test_a_broken_line(line: str | bytes | dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, "", line, GOOD)
    found = refusal(path)
    says(str(found), "--skip-invalid", "line 3")
    assert len(str(found)) < len(str(path)) + 300
    lines, skipped = read_prompt_lines(path, True)
    assert [entry.line for entry in lines] == [1, 4]
    assert skipped == [str(found).removesuffix("; --skip-invalid leaves such lines out")]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b" "])
def test_no_line_at_all(content: bytes, tmp_path: Path) -> None:
    for skip_invalid in (False, True):
        check(refusal(written(tmp_path, content), skip_invalid), field="prompts")
