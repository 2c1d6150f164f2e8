"""What comes back over a socket: its shape, its bytes, and that drafts change nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.serving import ServerProcess

pytestmark = pytest.mark.slow

PROMPTS = ["Hello", "Grüße aus Köln, 12 €", "日本語 🙂🙃", "for item in items:\n    print(item)\n"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "stop_token_ids": []}


def messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stream_has_the_text_of_the_whole_answer(server: ServerProcess, prompt: str) -> None:
    for count in range(1, 41):
        fields = GREEDY | {"max_tokens": count, "messages": messages(prompt)}
        whole = server.chat(**fields)
        chunks = server.events(CHAT, fields)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"]
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["completion_tokens"] == count


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_logprobs_of_a_completion_have_the_token_itself(server: ServerProcess, count: int) -> None:
    """As OpenAI's: one more than was asked for, where it is not among them."""
    fields = {"max_tokens": 20, "prompt": "Hello", "logprobs": count, "temperature": 2, "seed": 1}
    found = json.loads(server.ask("POST", TEXT, fields)[2])["choices"][0]["logprobs"]
    sizes = [len(likeliest) for likeliest in found["top_logprobs"]]
    assert max(sizes) == count + 1, "at this temperature one is not"
    for token, likeliest in zip(found["tokens"], found["top_logprobs"], strict=True):
        assert token in likeliest


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_of_a_completion_has_an_entry_of_its_own(server: ServerProcess, stream: bool) -> None:
    """Also halves of characters, whose text would be U+FFFD for all of them."""
    halves = 0
    for seed in range(12):
        fields = {"max_tokens": 24, "prompt": PROMPTS[2], "logprobs": 5, "temperature": 2, "seed": seed}
        if stream:
            parts = [chunk["choices"][0]["logprobs"] for chunk in server.events(TEXT, fields)]
        else:
            parts = [json.loads(server.ask("POST", TEXT, fields)[2])["choices"][0]["logprobs"]]
        for found in filter(None, parts):
            for token, own, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
                assert len(top) in (5, 6)
                assert top[token] == own
                assert len(top) == 5 or min(top.values()) == own
                halves += sum(name.startswith("bytes:\\x") for name in top)
    assert halves or "demo" in str(server.log)


def test_the_order_of_a_stream(server: ServerProcess) -> None:
    fields = GREEDY | {"max_tokens": 30, "messages": messages("Hello"), "stream_options": {"include_usage": True}}
    chunks = server.events(CHAT, fields)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 30
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-2])
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(
        "usage" not in chunk for chunk in server.events(CHAT, GREEDY | {"messages": messages("a"), "max_tokens": 5})
    )


def test_the_openai_client_reads_it(server: ServerProcess) -> None:
    with server.openai() as client:
        model = client.models.list().data[0]
        assert client.models.retrieve(model.id).id == model.id
        asked: dict[str, Any] = dict(model=model.id, messages=messages("Hello"), max_tokens=24, temperature=0)
        whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
        assert whole.object == "chat.completion"
        assert whole.choices[0].logprobs is not None
        chunks = list(
            client.chat.completions.create(**asked, stream=True, extra_body={"specexport": {"show_drafts": True}})
        )
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
        assert {chunk.id for chunk in chunks} == {chunks[0].id}
        assert client.completions.create(model=model.id, prompt=["a", "b"], max_tokens=3).choices[1].index == 1


DRAFTING: list[dict[str, Any]] = [
    {"num_draft_tokens": 1},
    {"num_draft_tokens": 2},
    {"num_draft_tokens": 3},
    {"num_draft_tokens": 4},
    {"drafter": "model"},
    {"drafter": "ngram"},
    {"drafter": "ngram+model"},
    {"speculate": True, "show_drafts": True},
]


@pytest.mark.parametrize("drafting", DRAFTING, ids=str)
def test_drafts_change_nothing(server: ServerProcess, drafting: dict[str, Any]) -> None:
    fields = GREEDY | {"max_tokens": 60, "messages": messages("the quick brown fox")}
    plain = server.chat(**fields, specexport={"speculate": False})
    told = server.chat(**fields, specexport=drafting)
    assert told["choices"] == plain["choices"]
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    row = told["metrics"]["speculative_decoding"]
    assert sum(row["acceptance_histogram"]) == row["num_spec_steps"]
    assert sum(n * count for n, count in enumerate(row["acceptance_histogram"])) == row["num_accepted_draft_tokens"]


def test_logprobs_of_what_a_stop_string_cut_are_left_out(server: ServerProcess) -> None:
    fields = GREEDY | {"max_tokens": 40, "messages": messages("for item in items:"), "logprobs": True}
    text = server.chat(**fields)["choices"][0]["message"]["content"]
    stop = next(text[place : place + 3] for place in range(8, len(text)) if "\ufffd" not in text[place : place + 3])
    choice = server.chat(**fields, stop=[stop])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]
    spelled = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"]).decode(errors="replace")
    assert choice["message"]["content"].startswith(spelled)
    chunks = server.events(CHAT, fields | {"stop": [stop]})
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    streamed = [entry for part in parts if part for entry in part["content"]]
    assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in choice["logprobs"]["content"]]
    # Not the same bits: the rows came from passes of other widths.
    given = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert [entry["logprob"] for entry in streamed] == pytest.approx(given, abs=1e-4)


def test_a_stop_token_has_no_entry(server: ServerProcess) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "messages": messages("Hello"), "stop_token_ids": []}
    plain = {"speculate": False, "show_drafts": True}
    ids = [c["specexport"]["next"]["id"] for c in server.events(CHAT, fields | {"specexport": plain})[1:-1]]
    for drafting in ({"speculate": False}, {"drafter": "ngram+model"}):
        told = server.chat(**fields | {"stop_token_ids": [ids[6]], "logprobs": True, "specexport": drafting})
        (choice,) = told["choices"]
        assert choice["finish_reason"] == "stop"
        assert told["usage"]["completion_tokens"] == ids.index(ids[6]) + 1
        assert len(choice["logprobs"]["content"]) == ids.index(ids[6])


def test_a_prediction_is_accepted_and_told(server: ServerProcess) -> None:
    fields = GREEDY | {"max_tokens": 40, "messages": messages("Hello")}
    ids = server.chat(**fields)["choices"]
    text = ids[0]["message"]["content"]
    told = server.chat(**fields, prediction={"type": "content", "content": text})
    details = told["usage"]["completion_tokens_details"]
    assert told["choices"] == ids
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
    parts = {"type": "content", "content": [{"type": "text", "text": text}]}
    assert server.chat(**fields, prediction=parts)["choices"] == ids


def test_the_fields_of_a_request(server: ServerProcess) -> None:
    plain = server.chat(**GREEDY, max_tokens=8)["choices"]
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    status, headers, body = server.ask(
        "POST",
        CHAT,
        GREEDY
        | {
            "max_completion_tokens": 8,
            "max_tokens": 3,
            "messages": messages("Hello"),
            "user": "me",
            "n": 1,
            "store": False,
            "logprobs": False,
            "tools": [],
            "top_k": -1,
            "weird": 3,
            "": 1,
            " blank ": 1,
            "a,b": 1,
            "\n": 1,
            "metadata": {"a": "b"},
        },
    )
    assert (status, headers["x-specexport-ignored"]) == (200, "weird")
    names = ["a" * 10_000, *(f"field-{number}" for number in range(200))]
    status, headers, _ = server.ask(
        "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, **dict.fromkeys(names, 1)}
    )
    listed = headers["x-specexport-ignored"].split(", ")
    assert (status, listed) == (200, names[1 : 1 + len(listed)])
    assert len(listed) > 50
    assert json.loads(body)["choices"] == plain
    assert "x-request-id" in headers
    joined = server.chat(**GREEDY, max_tokens=8, messages=[{"role": "user", "content": parts}])["choices"]
    assert joined == server.chat(**GREEDY, max_tokens=8, messages=messages("Hel\nlo"))["choices"]
    developer = server.chat(**GREEDY, max_tokens=8, messages=[{"role": "developer", "content": "x"}, *messages("y")])
    system = server.chat(**GREEDY, max_tokens=8, messages=[{"role": "system", "content": "x"}, *messages("y")])
    assert developer["choices"] == system["choices"]
    clamped = server.chat(**GREEDY, max_tokens=100_000)
    assert clamped["choices"][0]["finish_reason"] == "length"
    forced = server.chat(**GREEDY, max_tokens=4, logit_bias={"70": 100}, logprobs=True)["choices"][0]["logprobs"]
    assert len({entry["token"] for entry in forced["content"]}) == 1


def test_tokens_there_and_back(server: ServerProcess) -> None:
    for text in PROMPTS:
        status, _, body = server.ask("POST", "/tokenize", {"prompt": text, "return_token_strs": True})
        told = json.loads(body)
        assert status == 200
        assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
        status, _, body = server.ask("POST", "/detokenize", {"tokens": told["tokens"]})
        assert json.loads(body)["prompt"] == text
    server.refused("/tokenize", {"prompt": text, "continue_final_message": True}, param="continue_final_message")
    chat = json.loads(server.ask("POST", "/tokenize", {"messages": messages("Hello")})[2])
    assert server.chat(max_tokens=1)["usage"]["prompt_tokens"] == chat["count"]
