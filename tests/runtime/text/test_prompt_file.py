"""The file of prompts: every way to be wrong is told with its line, and the rest stays usable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from specexport.errors import ParameterError
from specexport.runtime.text.prompt_file import PromptLine, read_prompt_lines, read_prompts

GOOD: dict[str, Any] = {"route": "code", "prompt": "def"}


def written(folder: Path, *lines: str | bytes | dict[str, Any]) -> Path:
    path = folder / "prompts.jsonl"
    raw = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in raw))
    return path


def refusal(path: Path, skip_invalid: bool = False) -> str:
    with pytest.raises(ParameterError) as caught:
        read_prompt_lines(path, skip_invalid)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    return message


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


BROKEN: list[tuple[str | bytes | dict[str, Any], str]] = [
    ("{", "found '{', which is not JSON"),
    ('{"route": "x", "prompt": ' + "[" * 100_000, "which is not JSON"),
    ('{"route": "x", "prompt": [' + "1" * 5000 + "]}", "which is not JSON"),
    ("[1]", "found [1], expected {"),
    ("null", "found None, expected {"),
    (b'{"route": "\xff"}', "which is not UTF-8"),
    ({"prompt": "x"}, 'found no "route"'),
    (GOOD | {"route": ""}, "found the route ''"),
    (GOOD | {"route": "  "}, "found the route '  '"),
    (GOOD | {"route": " code"}, "without blanks around it"),
    (GOOD | {"route": None}, "found the route None"),
    (GOOD | {"route": 3}, "found the route 3"),
    (GOOD | {"route": "a\x1b[31m"}, "found the route 'a\\x1b[31m'"),
    (GOOD | {"route": "a\nb"}, "found the route 'a\\nb'"),
    (GOOD | {"route": "\ud800"}, "found the route '\\ud800'"),
    ({"route": "x"}, 'found no "prompt"'),
    (GOOD | {"messages": [{"role": "user"}]}, 'found both "prompt" and "messages"'),
    (GOOD | {"prompt": ""}, "found the prompt ''"),
    (GOOD | {"prompt": []}, "found the prompt []"),
    (GOOD | {"prompt": None}, "found the prompt None"),
    (GOOD | {"prompt": 5}, "found the prompt 5"),
    (GOOD | {"prompt": {"0": 1}}, "found the prompt {'0': 1}"),
    (GOOD | {"prompt": [1, True]}, "found the prompt [1, True]"),
    (GOOD | {"prompt": [1, 2.0]}, "found the prompt [1, 2.0]"),
    ({"route": "x", "messages": []}, "found the messages []"),
    ({"route": "x", "messages": "hi"}, "found the messages 'hi'"),
    ({"route": "x", "messages": ["hi"]}, "found the messages ['hi']"),
    (
        GOOD | {"temperature": 1},
        "found the unknown key 'temperature', expected route, prompt, messages, max_new_tokens",
    ),
    ('{"route": "x", "prompt": "a", "prompt": "b"}', "found the key 'prompt' twice"),
    (GOOD | {"max_new_tokens": 0}, "found max_new_tokens 0"),
    (GOOD | {"max_new_tokens": "9"}, "found max_new_tokens '9'"),
    (GOOD | {"max_new_tokens": True}, "found max_new_tokens True"),
    (GOOD | {"max_new_tokens": None}, "found max_new_tokens None"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN)
def test_a_broken_line(line: str | bytes | dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, "", line, GOOD)
    found = refusal(path)
    assert found.startswith(f"{path}, line 3: found ")
    assert message in found
    assert found.endswith("; --skip-invalid leaves such lines out")
    assert len(found) < len(str(path)) + 300
    lines, skipped = read_prompt_lines(path, True)
    assert [entry.line for entry in lines] == [1, 4]
    assert skipped == [found.removesuffix("; --skip-invalid leaves such lines out")]


def test_only_broken_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "{", "[]", "3")
    found = refusal(path, skip_invalid=True)
    assert found.startswith(f"{path} has no line that can be used, expected lines")
    assert f"{path}, line 1: found '{{'" in found
    assert found.endswith("(and 2 more)")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b" "])
def test_no_line_at_all(content: bytes, tmp_path: Path) -> None:
    for skip_invalid in (False, True):
        assert "has no line that can be used" in refusal(written(tmp_path, content), skip_invalid)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(f"{tmp_path} cannot be read: Is a directory; give a JSONL file")
    assert "No such file" in refusal(tmp_path / "none")
    assert "not UTF-8" in refusal(written(tmp_path, json.dumps(GOOD).encode("utf-16")))


def test_routes_may_be_missing_where_they_do_not_matter(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = written(tmp_path, {"prompt": "a"}, {"messages": messages}, GOOD, {"prompt": [1, 2]})
    lines, skipped = read_prompt_lines(path, routed=False)
    assert [(line.route, line.prompt) for line in lines] == [("", "a"), ("", messages), ("code", "def"), ("", [1, 2])]
    assert skipped == []
    assert read_prompts(path) == ["a", messages, "def", [1, 2]]
    with pytest.raises(ParameterError, match=r"line 1: found \[1\], expected \{") as caught:
        read_prompts(written(tmp_path, "[1]"))
    assert "--skip-invalid" not in str(caught.value)
