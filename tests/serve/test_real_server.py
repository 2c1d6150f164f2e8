"""SmolLM2-135M-Instruct behind a socket, as a user would serve it. The draft model that is shipped for it drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import ServerProcess

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")
pytestmark = [pytest.mark.real, pytest.mark.nightly]
CHAT = "/v1/chat/completions"
QUESTIONS = [
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog near the river bank.",
    "Écris « déjà vu » et « 日本語 » 😀, puis recommence.",
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z]{1,10}@[a-z]{1,10}\\.com$"},
        "languages": {"type": "array", "items": {"enum": ["English", "French", "日本語"]}, "maxItems": 2},
    },
    "required": ["name", "age", "email", "languages"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def smollm2(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(smollm2_bundle, tmp_path_factory.mktemp("smollm2") / "log")
    yield process
    assert process.end() == 0, process.log.read_text()


def asked(question: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32, **fields}


def choice(server: ServerProcess, fields: dict[str, Any]) -> dict[str, Any]:
    return dict(server.chat(**fields)["choices"][0])


@pytest.mark.parametrize("question", QUESTIONS, ids=["ascii", "other"])
def test_a_stream_is_the_whole_answer(smollm2: ServerProcess, question: str) -> None:
    for count in (1, 2, 32):
        fields = asked(question, max_tokens=count)
        whole = smollm2.chat(**fields)
        *chunks, last = smollm2.events(CHAT, {**fields, "stream_options": {"include_usage": True}})
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"]
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


@pytest.mark.parametrize("question", QUESTIONS, ids=["ascii", "other"])
def test_the_text_is_the_same_however_it_is_drafted(smollm2: ServerProcess, question: str) -> None:
    plain = choice(smollm2, asked(question, specexport={"speculate": False}))
    drafted = 0
    for options in ({"num_draft_tokens": 1}, {"num_draft_tokens": 4}, {"drafter": "ngram"}, {"drafter": "suffix"}, {}):
        answer = smollm2.chat(**asked(question, specexport=options))
        assert answer["choices"][0] == plain, options
        drafted += answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
    assert drafted > 0


def test_a_schema_is_answered_with_what_it_describes(smollm2: ServerProcess) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    fields = asked("Describe a person as JSON.", response_format=wanted, max_tokens=120)
    answers = [choice(smollm2, fields | {"temperature": 1, "seed": seed}) for seed in range(2)]
    answers.append(choice(smollm2, fields))
    for answer in answers:
        assert answer["finish_reason"] == "stop"
        jsonschema.validate(json.loads(answer["message"]["content"]), PERSON)
    assert choice(smollm2, fields | {"specexport": {"speculate": False}}) == answers[-1]
