"""What a server may be told in code, and on the command line: what cannot be is refused in one line."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specexport.bundle import Contract
from specexport.cli import main
from specexport.cli.serve import serve
from specexport.errors import ParameterError
from specexport.serve import AsyncSession, ServerSettings, create_app
from specexport.serve.settings import CHECKS, KEY_VARIABLE, OPTIONAL, keys_of_host
from support.messages import Refused
from support.serving import slow_session

CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
NAN = float("nan")
SEVERAL = ("api_keys", "allowed_hosts", "cors_origins")
WRONG: list[dict[str, Any]] = [
    {"api_keys": ("",)},
    {"api_keys": ("a b",)},
    {"api_keys": ("schlüssel",)},
    {"api_keys": {"secret": 1}},
    {"api_keys": None},
    {"api_keys": ("secret", 5)},
    {"allowed_hosts": ("http://my.host",)},
    {"allowed_hosts": ("my.host:8000",)},
    {"allowed_hosts": ("*.my.host",)},
    {"cors_origins": ("foo",)},
    {"cors_origins": ("https://app.example/",)},
    {"cors_origins": ("*",)},
    {"default_temperature": 3},
    {"default_temperature": NAN},
    {"default_temperature": "a"},
    {"max_queue": 0},
    {"max_queue": -5},
    {"max_queue": "a"},
    {"max_queue": 1.5},
    {"max_queue_per_key": 0},
    {"max_tokens": True},
    {"queue_timeout": -1},
    {"queue_timeout": NAN},
    {"queue_timeout": float("inf")},
    {"stall_timeout": NAN},
    {"stall_timeout": None},
    {"ping_interval": 0},
    {"model": 5},
    {"model": ""},
    {"model": ()},
    {"model": ["a", ""]},
    {"model": ["a", 5]},
    {"model": b"a"},
    {"any_model_name": "yes"},
    {"model": "a\udcff"},
    {"strict_fields": "yes"},
    {"metrics_prefix": "1 2"},
    {"replica": "a\r\nb"},
    {"replica": 5},
    {"drafter": 5},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_settings_that_cannot_be(wrong: dict[str, Any], refused: Refused) -> None:
    with refused(ParameterError):
        ServerSettings(**wrong)


@pytest.mark.parametrize("alone", ["secret", b"secret", ""], ids=repr)
@pytest.mark.parametrize("name", SEVERAL)
def test_one_text_is_not_several(name: str, alone: Any) -> None:
    """Each of its letters would be a key, a host or an origin."""
    advice = rf"^{name} .* give a list or a tuple, with its comma: {name}=\("
    with pytest.raises(ParameterError, match=advice) as told:
        ServerSettings(**{name: alone})
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("wrong", [("secret", b"x"), ("secret", ""), ("secret", "a b"), ["secret", None]], ids=repr)
def test_no_key_is_shown(wrong: Any) -> None:
    with pytest.raises(ParameterError) as told:
        ServerSettings(api_keys=wrong)
    assert "secret" not in str(told.value)


def test_several_are_kept_as_they_are_meant() -> None:
    found = ServerSettings(
        api_keys=["secret", "other"],  # type: ignore[arg-type]
        allowed_hosts=iter(["My.Host", "192.0.2.1", "[::1]"]),  # type: ignore[arg-type]
        cors_origins=("https://App.example", "http://localhost:3000", "app://local"),
    )
    assert found.api_keys == ("secret", "other")
    assert found.hosts is not None
    assert {"my.host", "192.0.2.1", "[::1]"} < set(found.hosts)
    assert found.cors_origins == ("https://app.example", "http://localhost:3000", "app://local")
    assert ServerSettings(allowed_hosts=("*",)).hosts is None


def test_every_setting_is_checked() -> None:
    assert set(CHECKS) == {field.name for field in fields(ServerSettings)}
    for field in fields(ServerSettings):
        if field.name not in OPTIONAL:
            with pytest.raises(ParameterError, match=f"^{field.name} "):
                ServerSettings(**{field.name: None})


QUEUES: list[dict[str, Any]] = [
    {"max_queue": 0},
    {"max_queue": -5},
    {"max_queue": "a"},
    {"max_queue_per_key": 0},
    {"queue_timeout": -1},
    {"queue_timeout": NAN},
    {"grammar_timeout": NAN},
]


@pytest.mark.parametrize("wrong", QUEUES, ids=str)
def test_queues_that_cannot_be(tmp_path: Path, wrong: dict[str, Any]) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    with session, pytest.raises(ParameterError, match=f"^{next(iter(wrong))} is "):
        AsyncSession(session, **wrong)


def test_where_it_runs_and_how_much_it_keeps_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("specexport.cli.loading.load", lambda bundle, **options: asked.append(options) or 1 / 0)
    monkeypatch.setattr("specexport.cli.serve._log_to_stderr", lambda: None)
    CliRunner().invoke(serve, ["some.bundle", "--prompt-cache-mib", "3", "--threads", "2"])
    where = dict(engine=None, threads=2, device=None)
    assert asked == [{"prompt_cache_bytes": 3 << 20, "chat_template": None} | where]


@pytest.mark.parametrize("name", ["queue", "grammar", "stall", "drain"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_times_that_are_none_on_the_command_line(name: str, value: str) -> None:
    found = CliRunner().invoke(serve, ["some.bundle", f"--{name}-timeout", value])
    assert found.exit_code == 2
    assert re.search(rf"Invalid value for '--{name}-timeout': {value}\S* is not ", found.stderr), found.stderr


@pytest.mark.parametrize(
    ("content", "variable"),
    [
        (b"good\n\nsecret\xff\n", ""),
        (b"# of the web page\nsecret\n", ""),
        (b"  \n", ""),
        (b"good\n", "secret and more"),
    ],
    ids=["no text", "a comment", "no key", "in the environment"],
)
def test_keys_that_no_client_can_send(
    content: bytes, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """The message names the place, and no key."""
    file = tmp_path / "keys"
    file.write_bytes(content)
    monkeypatch.setenv(KEY_VARIABLE, variable)
    found = CliRunner().invoke(main, ["serve", "some.bundle", "--api-key-file", str(file)])
    assert (found.exit_code, found.stdout) == (1, "")
    assert "secret" not in found.stderr
    refused.says(found.stderr)


def test_keys_of_a_file_and_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert keys_of_host() == ()
    assert keys_of_host("one\n\n two \r\n", "keys") == ("one", "two")
    monkeypatch.setenv(KEY_VARIABLE, " three\n")
    assert keys_of_host("one\n", "keys") == ("one", "three")
    assert keys_of_host("\n", "keys") == keys_of_host() == ("three",)


def test_the_name_of_a_bundle_that_no_answer_can_hold(tmp_path: Path, refused: Refused) -> None:
    """It would be in each of them."""
    session, _ = slow_session(tmp_path / "a\nb.bundle", CONTRACT)
    with session:
        with refused(ParameterError):
            create_app(session)
        create_app(session, ServerSettings(model="a"))
