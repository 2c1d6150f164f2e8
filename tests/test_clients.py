"""benchmarks/clients, without any client: what the end of a check and of a script is called, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import environments
import harness
import pytest
from harness import UnexpectedError, outcome, refused_with
from results import Result, read
from servers import NAMES, environment

FOLDER = environments.HERE


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status\n{status}")
        self.status_code = status


class WrappedError(Exception):
    """As clients raise their own from that of their HTTP library, which has the response."""

    def __init__(self, status: int) -> None:
        super().__init__("wrapped")
        self.response = StatusError(status)


def ends(error: Exception, cause: Exception | None = None) -> dict[str, str]:
    def check() -> None:
        raise error from cause

    return outcome(check)


def test_an_answer_with_a_status_of_4xx_is_a_refusal_and_nothing_else_is() -> None:
    assert ends(StatusError(400)) == {"outcome": "refused", "reason": "StatusError: status 400"}
    assert ends(ValueError("own"), WrappedError(404))["outcome"] == "refused"
    assert ends(StatusError(500))["outcome"] == ends(ValueError("a"), StatusError(503))["outcome"] == "fails"
    assert ends(UnexpectedError("words"), StatusError(400))["outcome"] == "fails"
    assert outcome(lambda: None) == {"outcome": "ok", "reason": ""}


def test_a_wanted_refusal_has_a_type_and_words() -> None:
    with refused_with(StatusError, r"status\s4") as found:
        raise StatusError(404)
    assert found[0].status_code == 404
    with pytest.raises(UnexpectedError), refused_with(StatusError, "status 5"):
        raise StatusError(404)
    with pytest.raises(UnexpectedError), refused_with(StatusError):
        pass
    with pytest.raises(KeyError), refused_with(StatusError):
        raise KeyError


def line(check: str, outcome: str = "ok", reason: str = "") -> str:
    return json.dumps({"check": check, "outcome": outcome, "reason": reason})


def test_a_script_that_did_not_end_well_fails_whatever_it_had_done() -> None:
    assert read(line("chat"), 1, "Traceback\nImportError: x\n")[1:] == [
        Result("script", "fails", "ended with exit code 1: ImportError: x")
    ]
    assert read(line("chat"), None, "")[1:] == [Result("script", "fails", "ran too long: it said nothing")]
    assert [one.check for one in read("", 0, "")] == ["script"]


def test_a_script_finds_its_servers_and_nothing_of_the_callers_accounts(
    served_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LANGSMITH_TRACING"):
        monkeypatch.setenv(name, "secret")
    with environment(served_bundle, tmp_path / "log", {"PLAIN_URL": ()}) as found:
        monkeypatch.setattr(harness, "PLAIN_URL", found["PLAIN_URL"])
        assert harness.aborted() == 0
    assert "secret" not in found.values()
    assert found["MODEL"] == NAMES[-1]
    assert (Path(found["TOKENIZER"]) / "tokenizer.json").exists()
