"""`continue_final_message` and `add_generation_prompt`, vLLM's names: how a conversation ends before its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from specexport.errors import PromptError
from specexport.runtime.grammar.thinking import Thinking
from specexport.runtime.session import Session
from specexport.serve.wire.requests import Message
from specexport.serve.wire.translate import continued
from support import thinking_templates as templates
from support.doubles import EOS, FakeDecoder, fake_session
from support.refusals import refused
from support.scripted import CONTRACT, scripted_session, tell
from support.serving import Client, served
from transformers import PreTrainedTokenizerFast

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PLAIN = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content | trim }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PARTS = PLAIN.replace("message.content | trim", "message.content[0].text")
LEFT_OUT = PLAIN.replace("message.content | trim", "message.content if message.role == 'user' else ''")
OPEN = {"continue_final_message": True, "add_generation_prompt": False}
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
BEGUN: list[dict[str, Any]] = [*HELLO, {"role": "assistant", "content": "Once upon a "}]


def session_of(root: Path, template: str) -> Session:
    target, draft = FakeDecoder(CONTRACT, seed=2), FakeDecoder(CONTRACT, seed=2, noise=0.5)
    return fake_session(root, target, draft, (EOS,), template)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(session_of(tmp_path_factory.mktemp("a"), PLAIN)) as client:
        yield client


def text_of(session: Session, messages: list[dict[str, Any]], **ending: Any) -> str:
    return session.tokenizer.decode(session.encode(messages, variables=ending), skip_special_tokens=False)


def test_the_text_as_in_transformers(tmp_path: Path) -> None:
    """But for what a template trims: the answer goes on just where the message ends."""
    session = session_of(tmp_path, PLAIN)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=session.tokenizer, chat_template=PLAIN)
    said = [*HELLO, {"role": "assistant", "content": "Once upon a"}]
    for ending in (OPEN, {"add_generation_prompt": False}, {"add_generation_prompt": True}):
        assert text_of(session, said, **ending) == tokenizer.apply_chat_template(said, tokenize=False, **ending)
    assert text_of(session, BEGUN, **OPEN) == "[user]Hello<eos>[assistant]Once upon a "
    assert text_of(session, BEGUN, continue_final_message=True) == text_of(session, BEGUN, **OPEN)
    assert text_of(session, [*HELLO, {"role": "assistant", "content": ""}], **OPEN) == "[user]Hello<eos>[assistant]"


@pytest.mark.parametrize("template", [PLAIN, PARTS])
def test_parts_and_special_tokens_in_a_message(tmp_path: Path, template: str) -> None:
    session = session_of(tmp_path, template)
    content: Any = [{"type": "text", "text": "a<eos>b<e"}]
    hello = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    ids = session.encode([*hello, {"role": "assistant", "content": content}], variables=OPEN)
    assert session.tokenizer.decode(ids, skip_special_tokens=False) == "[user]Hi<eos>[assistant]a<eos>b<e"
    assert ids.count(EOS) == 1, "the message's own is text"


def test_what_cannot_be_continued(tmp_path: Path) -> None:
    session = session_of(tmp_path, PLAIN)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for last in (
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x", "tool_calls": [call]},
        {"role": "assistant", "content": []},
    ):
        with refused(PromptError, field="messages"):
            session.encode([*HELLO, last], variables=OPEN)
    with refused(PromptError, field="messages"):
        session_of(tmp_path / "b", LEFT_OUT).encode(BEGUN, variables=OPEN)


def ask(client: Client, path: str, **fields: Any) -> dict[str, Any]:
    status, _, body = client.ask("POST", path, {"temperature": 0, "max_tokens": 20, "stop_token_ids": [], **fields})
    assert status == 200, body
    return json.loads(body)["choices"][0]


@pytest.mark.parametrize("speculate", [False, True])
def test_the_answer_is_the_rest_of_the_message(client: Client, speculate: bool) -> None:
    """As of a text that ends there; whole and streamed."""
    more = {"specexport": {"speculate": speculate}}
    for messages, ending, prompt in (
        (BEGUN, OPEN, "[user]Hello<eos>[assistant]Once upon a "),
        (BEGUN, {"add_generation_prompt": False}, "[user]Hello<eos>[assistant]Once upon a<eos>"),
        (HELLO, {}, "[user]Hello<eos>[assistant]"),
    ):
        found = ask(client, CHAT, messages=messages, **ending, **more)["message"]["content"]
        assert found == ask(client, TEXT, prompt=prompt, **more)["text"]
        asked = {"messages": messages, **ending, "temperature": 0, "max_tokens": 20, "stop_token_ids": []}
        chunks = client.events(CHAT, asked)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == found
        tokens = json.loads(client.ask("POST", "/tokenize", {"messages": messages, **ending})[2])["tokens"]
        assert tokens == json.loads(client.ask("POST", "/tokenize", {"prompt": prompt})[2])["tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        (
            CHAT,
            {"continue_final_message": True, "add_generation_prompt": True},
            "invalid_value",
            "continue_final_message",
        ),
        (CHAT, {**OPEN, "messages": HELLO}, "invalid_value", "messages"),
        (CHAT, {**OPEN, "continue_final_message": 1}, "invalid_value", "continue_final_message"),
        (CHAT, {"chat_template_kwargs": OPEN}, "invalid_value", "chat_template_kwargs.continue_final_message"),
        (TEXT, {"prompt": "x", "continue_final_message": True}, "unsupported_parameter", "continue_final_message"),
        (TEXT, {"prompt": "x", "add_generation_prompt": False}, "unsupported_parameter", "add_generation_prompt"),
    ],
)
def test_what_is_refused(client: Client, path: str, fields: dict[str, Any], code: str, param: str) -> None:
    body = {"messages": BEGUN, **fields} if path == CHAT else fields
    client.refused(path, body, code, param)


@pytest.mark.parametrize(
    ("said", "begun"),
    [
        ("Yes, ", None),
        ("<think>\nwell, ", True),
        ("<think>\nwell\n</think>\n\nYes, ", None),
        ("<think>a</think><think>b", True),
        ("", False),
        ([{"type": "text", "text": "<think>"}, {"type": "text", "text": "a"}], True),
    ],
)
def test_thoughts_go_on_only_within_thoughts(said: Any, begun: bool | None) -> None:
    """begun: None where the model thinks no more, so that its answer is all content."""
    message = msgspec.convert({"role": "assistant", "content": said}, Message)
    found = continued(Thinking("<think>", "</think>"), message)
    assert (found and found.begun) == begun
    assert continued(None, message) is None


def test_an_answer_that_goes_on_is_not_searched_for_thoughts(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, templates.QWEN, "Yes, ", atoms=("<think>", "</think>"))
    tell(session, "<think>\nit is.")
    with served(session) as client:
        messages = [*HELLO, {"role": "assistant", "content": "Yes, "}]
        message = client.chat(messages=messages, **OPEN, temperature=0, max_tokens=100)["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "<think>\nit is.", "refusal": None}
