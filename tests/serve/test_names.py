"""The names of a model: several, any, none; and where clients of other APIs are sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.serve import ServerSettings
from support.serving import Client, served, slow_session

CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
TEXT = "/v1/completions"


def asked(client: Client, name: Any) -> tuple[int, dict[str, Any]]:
    status, _, body = client.ask("POST", TEXT, {"prompt": "a", "max_tokens": 1, "model": name})
    return status, json.loads(body)


def test_several_names(tmp_path: Path) -> None:
    settings = ServerSettings(model=("first", "second", "first", "org/third"))
    with served(slow_session(tmp_path, CONTRACT)[0], settings) as client:
        for name in ("first", "second", "org/third", "", None):
            status, answer = asked(client, name)
            assert (status, answer["model"]) == (200, "first")
        status, answer = asked(client, "fourth")
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
        assert all(repr(name) in answer["error"]["message"] for name in settings.names)
        listed = json.loads(client.ask("GET", "/v1/models")[2])["data"]
        assert [model["id"] for model in listed] == ["first", "second", "org/third"]
        for model in listed:
            assert json.loads(client.ask("GET", f"/v1/models/{model['id']}")[2]) == model
        assert client.ask("GET", "/v1/models/fourth")[0] == 404


def test_any_name(tmp_path: Path) -> None:
    with served(slow_session(tmp_path, CONTRACT)[0], ServerSettings(model="own", any_model_name=True)) as client:
        for name in ("gpt-4o", "../../etc/passwd", "own", ""):
            status, answer = asked(client, name)
            assert (status, answer["model"]) == (200, "own")
        assert json.loads(client.ask("GET", "/v1/models/gpt-4o")[2])["id"] == "own"
        assert len(json.loads(client.ask("GET", "/v1/models")[2])["data"]) == 1


def test_one_name_stays_the_text_that_it_was() -> None:
    assert ServerSettings(model="a").model == "a"
    assert ServerSettings(model=["a", "b"]).names == ("a", "b")  # type: ignore[arg-type]
    assert ServerSettings().names == ()


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/responses", "/v1/responses"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/embeddings", "see /openapi.json"),
    ],
)
def test_a_path_of_another_api_is_told_ours(tmp_path: Path, path: str, instead: str) -> None:
    with served(slow_session(tmp_path, CONTRACT)[0]) as client:
        error = client.refused(path, {}, "not_found", status=404)
        assert error["message"].endswith(instead)
