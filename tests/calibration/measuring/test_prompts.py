"""Requests of a measured run: as many tokens as fit, and what the session refuses is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.calibration.measuring.prompts import Request, choose, fit
from specexport.errors import ParameterError
from specexport.runtime.session import Session
from specexport.runtime.text.prompt_file import PromptLine
from support.doubles import CONTRACT, FakeDecoder, fake_session
from support.refusals import refused


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return fake_session(tmp_path / "bundle", FakeDecoder(), None)


def of(*prompts: object, max_new_tokens: int | None = None) -> list[PromptLine]:
    return [PromptLine(number, "r", prompt, max_new_tokens) for number, prompt in enumerate(prompts, start=5)]  # type: ignore[arg-type]


def test_prompts_become_tokens(session: Session) -> None:
    assert fit(session, of("ab", [7, 8]), 20, False) == (
        [Request(5, "r", (97, 98), 20), Request(6, "r", (7, 8), 20)],
        [],
    )


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("a" * CONTRACT.capacity, "the prompt has 48 tokens, the bundle's capacity is 48, including"),
        ([1, 9999], "token 9999"),
        ("\ud800", "not valid Unicode"),
        ([{"role": "user", "content": "hi"}], "no chat template"),
    ],
)
def test_prompts_that_the_session_refuses(prompt: object, message: str, session: Session) -> None:
    with pytest.raises(ParameterError) as caught:
        fit(session, of("x", prompt), 9, False)
    found = str(caught.value)
    assert found.startswith("prompts, line 6: ")
    assert message in found
    assert found.endswith("; --skip-invalid leaves such lines out")
    requests, skipped = fit(session, of("x", prompt, "y"), 9, True)
    assert [request.line for request in requests] == [5, 7]
    assert skipped == [found.removesuffix("; --skip-invalid leaves such lines out")]


def test_routes_and_a_limit_of_each() -> None:
    requests = [Request(line, route, (1,), 1) for line, route in enumerate("abacbab", start=1)]

    def lines(routes: tuple[str, ...], limit: int | None) -> list[int]:
        return [request.line for request in choose(requests, routes, limit)]

    assert lines((), None) == [1, 2, 3, 4, 5, 6, 7]
    assert lines((), 2) == [1, 2, 3, 4, 5]
    assert lines(("b", "a"), 1) == [1, 2]
    assert lines(("b",), None) == [2, 5, 7]
    with refused(ParameterError, "routes", field="route"):
        lines(("a", "d"), None)
