from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import pytest
from specexport.errors import BundleError, MissingPackageError, PromptError
from specexport.runtime.text.chat_template import render_chat
from support.doubles import byte_tokenizer
from transformers import PreTrainedTokenizerFast

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
CONVERSATION = [
    {"role": "system", "content": "Be <b>brief</b> & 'kind'."},
    {"role": "user", "content": "  Grüße, 世界!  "},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "And?", "extra": {"b": [1, "é"], "a": None}},
]
CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TEMPLATES = {
    "chatml": CHATML,
    "special tokens": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}",
    "absent special token": "{{ pad_token }}|{% if unk_token is defined %}defined{% else %}absent{% endif %}",
    "blocks with spaces": "   {% for m in messages %}  \n  {{ m.content }}\n   {% endfor %}\n\nend\n",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "tojson": "{{ messages | tojson }}",
    "tojson indent": "{{ messages[3].extra | tojson(indent=2) }}",
    "tojson options": "{{ messages[3].extra | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "unused raise": "{% if messages | length > 9 %}{{ raise_exception('too many') }}{% endif %}{{ messages[0].content }}",
    "tools are none": "{% if tools is not none %}tools{% endif %}{% if documents is not none %}documents{% endif %}plain",
    "tools defined": "{% if not tools is defined %}undefined{% else %}{{ tools }}{% endif %}",
    "generation": "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "slices and tests": "{% for m in messages[1:] %}{{ loop.index0 }}{{ m.content.split()[0] if m.content is string }}{% endfor %}",
    "no html escaping": "{{ messages[0].content }}",
    "dates": "{{ strftime_now('%Y') }}",
}


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), **SPECIAL)


@pytest.mark.parametrize("name", TEMPLATES)
def test_same_text_as_transformers(name: str, reference: PreTrainedTokenizerFast) -> None:
    template = TEMPLATES[name]
    expected = reference.apply_chat_template(
        CONVERSATION, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert render_chat(template, CONVERSATION, SPECIAL) == expected


def test_the_assistants_turn_is_opened() -> None:
    assert render_chat(CHATML, CONVERSATION[:2], {}).endswith("世界!<|im_end|>\n<|im_start|>assistant\n")


def test_dates_are_todays() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", CONVERSATION, {}) == str(datetime.now().year)


def test_raise_exception_refuses_the_messages() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    with pytest.raises(PromptError, match="the chat template refuses these messages: System role not supported"):
        render_chat(template, CONVERSATION, {})


@pytest.mark.parametrize("content", [None, 3, {"a": 1}])
def test_content_of_a_wrong_type_is_a_prompt_error(content: object) -> None:
    with pytest.raises(PromptError, match=r"message 0 has the content .*; expected a text"):
        render_chat(CHATML, [{"role": "user", "content": content}], {})


def test_a_message_of_tool_calls_needs_no_content() -> None:
    assert render_chat("{{ messages[0].tool_calls[0] }}", [{"role": "assistant", "tool_calls": ["f"]}], {}) == "f"


def test_an_error_within_the_template_is_a_prompt_error() -> None:
    with pytest.raises(PromptError, match="refuses these messages"):
        render_chat("{{ messages[0].content + 1 }}", [{"role": "user", "content": "x"}], {})


def test_a_key_that_the_template_needs() -> None:
    with pytest.raises(PromptError, match="refuses these messages"):
        render_chat("{{ messages[0].name.first }}", CONVERSATION, {})


def test_a_template_cannot_leave_the_sandbox() -> None:
    with pytest.raises(PromptError):
        render_chat("{{ messages.__class__.__mro__[1].__subclasses__() }}", CONVERSATION, {})
    with pytest.raises(PromptError):
        render_chat("{{ messages.append(1) }}", CONVERSATION, {})


def test_a_broken_template_is_the_bundles_fault() -> None:
    with pytest.raises(BundleError, match="the chat template cannot be parsed"):
        render_chat("{% for m in messages %}", CONVERSATION, {})


def test_no_template() -> None:
    with pytest.raises(BundleError, match="no chat template; give a prompt as text"):
        render_chat(None, CONVERSATION, {})


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "there are no messages"),
        ([{"role": "user", "content": "x"}, "text"], "message 1 is 'text'"),
        ([{"content": "x"}], "message 0 is"),
        ([{"role": 3, "content": "x"}], "message 0 is"),
    ],
)
def test_messages_that_are_none(messages: list[Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        render_chat(CHATML, messages, {})


def test_jinja2_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'specexport\[chat\]'"):
        render_chat(CHATML, CONVERSATION, {})
