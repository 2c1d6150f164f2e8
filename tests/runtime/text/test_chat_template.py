from __future__ import annotations

import sys
from typing import Any

import pytest
from specexport.errors import BundleError, MissingPackageError, PromptError
from specexport.runtime.text.chat_template import ChatTemplate
from specexport.runtime.text.messages import check_messages
from support.doubles import byte_tokenizer
from support.refusals import refused
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
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "tojson": "{{ messages | tojson }}",
    "tojson indent": "{{ messages[3].extra | tojson(indent=2) }}",
    "tojson options": "{{ messages[3].extra | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "unused raise": "{% if messages | length > 9 %}{{ raise_exception('too many') }}{% endif %}"
    "{{ messages[0].content }}",
    "tools are none": "{% if tools is not none %}tools{% endif %}"
    "{% if documents is not none %}documents{% endif %}plain",
    "tools defined": "{% if not tools is defined %}undefined{% else %}{{ tools }}{% endif %}",
    "generation": "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "slices and tests": "{% for m in messages[1:] %}"
    "{{ loop.index0 }}{{ m.content.split()[0] if m.content is string }}{% endfor %}",
    "no html escaping": "{{ messages[0].content }}",
    "dates": "{{ strftime_now('%Y') }}",
}


def render_chat(template: str, messages: Any, special_tokens: dict[str, str]) -> str:
    return ChatTemplate(template, special_tokens).render(check_messages(messages))


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


def test_raise_exception_refuses_the_messages() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    with refused(PromptError, "System", field="messages"):
        render_chat(template, CONVERSATION, {})


@pytest.mark.parametrize("content", [None, 3, {"a": 1}])
def test_content_of_a_wrong_type_is_a_prompt_error(content: object) -> None:
    with refused(PromptError, "0", field="messages"):
        render_chat(CHATML, [{"role": "user", "content": content}], {})


def test_a_template_cannot_leave_the_sandbox() -> None:
    with pytest.raises(PromptError):
        render_chat("{{ messages.__class__.__mro__[1].__subclasses__() }}", CONVERSATION, {})
    with pytest.raises(PromptError):
        render_chat("{{ messages.append(1) }}", CONVERSATION, {})


def test_a_broken_template_is_the_bundles_fault() -> None:
    with refused(BundleError, "else"):
        render_chat("{% for m in messages %}", CONVERSATION, {})


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "x"}, "text"],
        [{"content": "x"}],
        [{"role": 3, "content": "x"}],
        [{"role": "sytem", "content": "x"}],
    ],
)
def test_messages_that_are_none(messages: list[Any]) -> None:
    with refused(PromptError, field="messages"):
        render_chat(CHATML, messages, {})


def test_a_developer_is_the_system() -> None:
    developer, system = ([{"role": role, "content": "x"}] for role in ("developer", "system"))
    assert render_chat(CHATML, developer, {}) == render_chat(CHATML, system, {})


def test_jinja2_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with refused(MissingPackageError, "specexport[chat]"):
        render_chat(CHATML, CONVERSATION, {})
    with refused(MissingPackageError, "specexport[chat]"):
        _ = ChatTemplate(CHATML, {}).variables


PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "three"},
]
WHOLE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one\ntwo"},
    {"role": "assistant", "content": "three"},
]
TAKES_PARTS = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}{{ part.text }}{% if not loop.last %}|{% endif %}{% endfor %}{% endif %}{% endfor %}"""
PARTS_ALONE = "{% for m in messages %}{% for part in m.content %}[{{ part['text'] }}]{% endfor %}{% endfor %}"


def test_parts_are_joined_for_a_template_of_texts(reference: PreTrainedTokenizerFast) -> None:
    assert render_chat(CHATML, PARTS, {}) == render_chat(CHATML, WHOLE, {})
    # Written as they are, what such a template shows of a list is its Python form.
    plain = "{% for m in messages %}{{ m.content }};{% endfor %}"
    assert render_chat(plain, PARTS, {}) == "Be brief.;one\ntwo;three;"


@pytest.mark.parametrize("template", [TAKES_PARTS, PARTS_ALONE])
def test_parts_are_left_to_a_template_that_takes_them(template: str, reference: PreTrainedTokenizerFast) -> None:
    messages = PARTS if template is TAKES_PARTS else PARTS[:2]
    expected = reference.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert render_chat(template, messages, SPECIAL) == expected
    assert "one|two" in expected or "[one][two]" in expected


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "x"}}],
        [{"type": "text", "text": "x"}, {"type": "input_audio"}],
        ["text"],
        [{"text": "x"}],
        [{"type": "text"}],
        [{"type": "text", "text": 5}],
        [{"type": 5}],
    ],
)
def test_parts_that_are_no_texts_are_refused_in_one_line(content: Any) -> None:
    with refused(PromptError, "1", field="messages"):
        check_messages([PARTS[0], {"role": "user", "content": content}])


def test_a_template_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(CHATML, {})
    first = template.render(WHOLE)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert template.render(WHOLE) == first
