"""What a server may be told in code, and on the command line: what cannot be is refused in one line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specexport.bundle import Contract
from specexport.cli import main
from specexport.cli.serve import serve
from specexport.errors import EngineError, ParameterError
from specexport.serve import AsyncSession, ServerSettings, create_app
from specexport.serve.settings import KEY_VARIABLE, keys_of_host
from support.refusals import refused, says
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
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with refused(ParameterError, field=next(iter(wrong))):
        ServerSettings(**wrong)


@pytest.mark.parametrize("alone", ["secret", b"secret", ""], ids=repr)
@pytest.mark.parametrize("name", SEVERAL)
def test_one_text_is_not_several(name: str, alone: Any) -> None:
    """Each of its letters would be a key, a host or an origin."""
    advice = rf"^{name} .* give a list or a tuple, with its comma: {name}=\("
    with pytest.raises(ParameterError, match=advice) as told:
        ServerSettings(**{name: alone})
    assert "secret" not in str(told.value)


def test_every_setting_is_checked() -> None:
    for field in fields(ServerSettings):
        if field.default is None:
            assert getattr(ServerSettings(**{field.name: None}), field.name) is None
        else:
            with pytest.raises(ParameterError, match=f"^{field.name} "):
                ServerSettings(**{field.name: None})


def asked(*options: str) -> ServerSettings:
    """What the command makes of its options."""
    found = serve.make_context("serve", ["some.bundle", *options]).params
    return ServerSettings(**{one.name: found[one.name] for one in fields(ServerSettings) if one.name in found})


def test_the_commands_options_are_the_settings() -> None:
    assert asked() == ServerSettings()
    several = ("--served-model-name", "a", "--served-model-name", "b", "--allowed-host", "my.host")
    others = ("--no-access-log", "--any-model-name", "--max-queue", "3", "--cors-origin", "https://app.example")
    assert asked(*several, *others) == ServerSettings(
        model=("a", "b"),
        allowed_hosts=("my.host",),
        access_log=False,
        any_model_name=True,
        max_queue=3,
        cors_origins=("https://app.example",),
    )


@pytest.mark.parametrize("option", ["--queue-timeout", "--drain-delay", "--drain-timeout"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_time_that_is_no_number_is_a_usage_error(option: str, seconds: str) -> None:
    done = CliRunner().invoke(main, ["serve", "some.bundle", option, seconds])
    assert done.exit_code == 2
    assert option in done.output
    assert len(done.output.splitlines()) == 1


def test_what_the_command_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[dict[str, Any]] = []

    def load(bundle: Path, **options: Any) -> None:
        loaded.append(options)
        raise EngineError("enough")

    monkeypatch.setattr("specexport.runtime.load.load", load)
    monkeypatch.setattr("specexport.cli.serve._log_to_stderr", lambda: None)
    CliRunner().invoke(main, ["serve", "some.bundle", "--threads", "3", "--prompt-cache-mib", "2"])
    where = {"engine": None, "threads": 3, "device": None}
    assert loaded == [{"prompt_cache_bytes": 2 << 20, "chat_template": None, **where}]


@pytest.mark.parametrize(
    ("keys", "given", "expected"), [((), None, 40), (("a",), None, 40), (("a", "b"), None, 4), (("a", "b"), 7, 7)]
)
def test_one_users_requests_may_fill_the_queue_and_one_of_several_may_not(
    keys: tuple[str, ...], given: int | None, expected: int
) -> None:
    assert ServerSettings(api_keys=keys, max_queue=40, max_queue_per_key=given).waiting_per_key == expected


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


@pytest.mark.parametrize("option", ["--served-model-name", "--replica-name", "--cors-origin", "--allowed-host"])
def test_an_empty_text_is_refused_by_its_option(option: str) -> None:
    found = CliRunner().invoke(main, ["serve", "some.bundle", option, ""])
    assert (found.exit_code, found.stdout, found.stderr.count(option)) == (2, "", 1)


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
    content: bytes, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the place, and no key."""
    file = tmp_path / "keys"
    file.write_bytes(content)
    monkeypatch.setenv(KEY_VARIABLE, variable)
    found = CliRunner().invoke(main, ["serve", "some.bundle", "--api-key-file", str(file)])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "secret" not in found.stderr
    says(found.stderr, "API")


def test_keys_of_a_file_and_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert keys_of_host() == ()
    assert keys_of_host("one\n\n two \r\n", "keys") == ("one", "two")
    monkeypatch.setenv(KEY_VARIABLE, " three\n")
    assert keys_of_host("one\n", "keys") == ("one", "three")
    assert keys_of_host("\n", "keys") == keys_of_host() == ("three",)


def test_the_name_of_a_bundle_that_no_answer_can_hold(tmp_path: Path) -> None:
    """It would be in each of them."""
    session, _ = slow_session(tmp_path / "a\nb.bundle", CONTRACT)
    with session:
        with refused(ParameterError, "a\\nb", field="model"):
            create_app(session)
        create_app(session, ServerSettings(model="a"))
