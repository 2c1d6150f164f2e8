"""Fields of other servers: none that narrows or changes what an answer may be is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from specexport.serve.wire.body import parse
from specexport.serve.wire.errors import ApiError
from specexport.serve.wire.known_fields import FIELDS, OTHER_NAMES
from specexport.serve.wire.requests import ChatRequest, CompletionRequest, TokenizeRequest
from support.refusals import refused

HELLO = {"role": "user", "content": "Hello"}
# What each asks for, and the same field where it asks for nothing (None where it always asks).
CHANGE: dict[str, tuple[Any, Any]] = {
    "allowed_token_ids": ([5], []),
    "bad_words": (["Sure"], []),
    "banned_strings": (["a"], []),
    "suppress_tokens": ([5], []),
    "logits_processors": (["a.b"], []),
    "custom_logit_processor": ("x", ""),
    "force_words_ids": ([[5]], []),
    "grammar": ('root ::= "a"', ""),
    "ebnf": ('root ::= "a"', ""),
    "guided_grammar": ('root ::= "a"', None),
    "guided_whitespace_pattern": (" ", None),
    "structural_tag": ("{}", None),
    "schema": ({"type": "object"}, None),
    "json_mode": (True, False),
    "response_schema": ({"type": "object"}, None),
    "mirostat": (2, 0),
    "mirostat_mode": (1, 0.0),
    "mirostat_target": (1.5, None),
    "typical_p": (0.9, 1),
    "tfs": (0.9, 1.0),
    "tfs_z": (0.9, 1),
    "top_a": (0.1, 0),
    "top_n_sigma": (1.5, -1),
    "dry_multiplier": (0.8, 0),
    "xtc_probability": (0.5, 0.0),
    "dynatemp_range": (0.5, 0),
    "smoothing_factor": (0.2, 0),
    "epsilon_cutoff": (3, 0),
    "penalty_alpha": (0.6, 0),
    "guidance_scale": (1.5, 1),
    "negative_prompt": ("no", ""),
    "no_repeat_ngram_size": (3, 0),
    "encoder_repetition_penalty": (1.1, 1),
    "repeat_last_n": (64, -1),
    "samplers": (["top_k"], None),
    "min_keep": (2, 0),
    "do_sample": (False, True),
    "watermark": (True, False),
    "n": (2, 1.0),
    "n_cmpl": (2, 1),
    "best_of": (2, 1),
    "use_beam_search": (True, False),
    "num_beams": (4, 1),
    "max_length": (30, None),
    "min_length": (3, 0),
    "max_time": (2.0, 0),
    "t_max_predict_ms": (100, -1),
    "stop_regex": ("a+", None),
    "eos_token_id": (5, None),
    "include_stop_str_in_output": (True, False),
    "no_stop_trim": (True, False),
    "skip_special_tokens": (False, True),
    "echo": (True, False),
    "return_full_text": (True, False),
    "prompt_logprobs": (1, None),
    "n_probs": (5, 0),
    "suffix": ("x", ""),
    "truncate_prompt_tokens": (3, None),
    "truncate": (3, None),
    "prompt_truncate_len": (3, None),
    "context_length_exceeded_behavior": ("truncate", "error"),
    "truncation": ("auto", "disabled"),
    "transforms": (["middle-out"], []),
    "add_generation_prompt": (False, True),
    "continue_final_message": (True, False),
    "add_special_tokens": (True, False),
    "system": ("Be brief.", ""),
    "prompt": ("Hello", None),
    "input_ids": ([1], None),
    "prompt_embeds": ("AAAA", None),
    "documents": ([{"text": "a"}], []),
    "images": (["AAAA"], []),
    "chat_template": ("{{ 1 }}", None),
    "raw": (True, False),
    "functions": ([{"name": "f"}], []),
    "max_tool_calls": (1, None),
    "modalities": (["audio"], ["text"]),
    "think": (False, None),
    "thinking": ({"type": "disabled"}, None),
    "reasoning": ({"effort": "low"}, None),
    "enable_thinking": (False, None),
    "thinking_budget": (100, None),
    "reasoning_budget": (0, -1),
    "include_reasoning": (False, True),
    "reasoning_format": ("none", "auto"),
    "verbosity": ("low", "medium"),
    "lora": ([{"id": 0, "scale": 1}], []),
    "lora_path": ("a", None),
    "adapter_id": ("a", None),
    "safe_prompt": (True, False),
    "options": ({"temperature": 0}, {}),
    "parameters": ({"max_new_tokens": 3}, {}),
    "extra_body": ({"top_k": 1}, {}),
    "nvext": ({"ignore_eos": True}, {}),
    "vllm_xargs": ({"a": 1}, {}),
}
NESTED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [HELLO, {"role": "assistant", "content": "Su", "prefix": True}]}, "messages[1].prefix"),
    ({"messages": [HELLO, {"role": "assistant", "content": "Su", "partial": True}]}, "messages[1].partial"),
    ({"messages": [HELLO, {**HELLO, "images": ["AAAA"]}]}, "messages[1].images"),
    (
        {"messages": [HELLO, {"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
        "messages[1].function_call",
    ),
    ({"response_format": {"type": "json_object", "grammar": "x"}}, "response_format.grammar"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
    ),
    (
        {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        "structured_outputs.disable_additional_properties",
    ),
]


def chat(strict: bool = False, **fields: Any) -> Any:
    return parse(ChatRequest, json.dumps({"messages": [HELLO], **fields}).encode(), strict)


def text(**fields: Any) -> Any:
    return parse(CompletionRequest, json.dumps({"prompt": "Hello", **fields}).encode(), False)


@pytest.mark.parametrize("name", CHANGE)
def test_what_changes_an_answer_is_refused_by_name(name: str) -> None:
    value, neutral = CHANGE[name]
    with refused(ApiError, code="unsupported_parameter", field=name) as caught:
        chat(**{name: value})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
    if name not in ("prompt", "add_special_tokens"):
        with pytest.raises(ApiError, match=f"^{name} is not supported"):
            text(**{name: value})
    assert chat(strict=True, **{name: None}).ignored == []
    if neutral is not None:
        assert chat(strict=True, **{name: neutral}).ignored == []


def test_all_of_them_are_in_one_table_with_an_advice() -> None:
    assert len(CHANGE) >= 90
    assert not {*CHANGE} - {*FIELDS}
    assert not {*OTHER_NAMES} & {*FIELDS}
    for name, (accepted, reason) in FIELDS.items():
        assert reason or accepted, name
        assert not reason or reason[0].islower() or "JSON" in reason, name


@pytest.mark.parametrize(("fields", "name"), NESTED, ids=[name for _, name in NESTED])
def test_in_other_objects_too(fields: dict[str, Any], name: str) -> None:
    with refused(ApiError, code="unsupported_parameter", field=name) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize(
    "name",
    [
        *("grammar_string", "allowed_tokens", "guided_decoding", "structuredOutput", "banned_words", "constraints"),
        *("stops", "badword"),
        *("response_format.json_schema.regex", "structured_outputs.lark", "jsonSchema", "forced_decoder_ids"),
    ],
)
def test_a_name_that_is_not_known_and_seems_to_narrow_the_answer(name: str) -> None:
    def given(value: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}
        fields["structured_outputs"] = {"regex": "a"}
        *objects, last = name.split(".")
        at = fields
        for one in objects:
            at = at[one]
        at[last] = value
        return {key: fields[key] for key in (objects or [last])[:1]}

    with refused(ApiError, code="unsupported_parameter", field=name):
        chat(**given("x"))
    for nothing in (None, False, "", {}):
        assert chat(**given(nothing)).ignored == []


def test_a_schema_of_what_a_tool_returns_narrows_nothing() -> None:
    tool = {"type": "function", "function": {"name": "f", "output_schema": {"type": "object"}}}
    assert chat(tools=[tool]).ignored == ["tools[0].function.output_schema"]


def test_true_is_not_one() -> None:
    with refused(ApiError, code="unsupported_parameter", field="n"):
        chat(n=True)


def test_where_special_tokens_are_added() -> None:
    """By the template in a conversation, by the tokenizer to a text."""
    assert text(add_special_tokens=True).ignored == []
    body = json.dumps({"prompt": "a", "add_special_tokens": True}).encode()
    assert parse(TokenizeRequest, body, True).ignored == []
    with pytest.raises(ApiError, match="give token ids as the prompt"):
        text(add_special_tokens=False)


def test_what_has_no_effect_on_an_answer_is_named_in_the_header() -> None:
    fields = {"cache_prompt": True, "keep_alive": "5m", "num_ctx": 2048, "snippy": {"enabled": False}, "priority": 1}
    assert chat(**fields).ignored == [*fields]
    assert chat(strict=True, user="u", metadata={"a": 1}, mirostat_tau=5, dry_base=1.75).ignored == []


SAME: list[tuple[dict[str, Any], str, Any]] = [
    ({"repeat_penalty": 1.1}, "repetition_penalty", 1.1),
    ({"n_predict": 7}, "max_tokens", 7),
    ({"n_predict": -1}, "max_tokens", 2**31 - 1),
    ({"num_predict": -2}, "max_tokens", 2**31 - 1),
    ({"max_new_tokens": 7.0}, "max_tokens", 7),
    ({"max_output_tokens": 7, "max_tokens": 7}, "max_tokens", 7),
    ({"min_new_tokens": 2}, "min_tokens", 2),
    ({"stop_sequences": ["a"]}, "stop", ["a"]),
    ({"stop_strings": "a"}, "stop", "a"),
    ({"random_seed": 3}, "seed", 3),
    ({"ban_eos_token": True}, "ignore_eos", True),
    ({"json_schema": {"type": "object"}}, "structured_outputs.json", {"type": "object"}),
    ({"json_schema": "{}"}, "structured_outputs.json", "{}"),
    ({"guided_json": {"type": "object"}}, "structured_outputs.json", {"type": "object"}),
    ({"format": {"type": "object"}}, "structured_outputs.json", {"type": "object"}),
    ({"format": "json"}, "structured_outputs.json_object", True),
    ({"regex": "a+"}, "structured_outputs.regex", "a+"),
    ({"guided_regex": "a+"}, "structured_outputs.regex", "a+"),
    ({"guided_choice": ["a", "b"]}, "structured_outputs.choice", ["a", "b"]),
    ({"regex_pattern": "a+"}, "structured_outputs.regex", "a+"),
    ({"stop_words": ["a"]}, "stop", ["a"]),
    ({"n_predict": -1, "max_tokens": 7}, "max_tokens", 7),
    ({"format": "", "guided_choice": [], "regex": ""}, "structured_outputs", None),
]


@pytest.mark.parametrize(("fields", "name", "value"), SAME, ids=[str(fields) for fields, _, _ in SAME])
def test_other_names_of_what_is_here(fields: dict[str, Any], name: str, value: Any) -> None:
    for parsed in (chat(strict=True, **fields), text(**fields)):
        found: Any = parsed.request
        for step in name.split("."):
            found = getattr(found, step)
        assert found == value


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n_predict": 0}, "n_predict"),
    ({"n_predict": 3, "max_tokens": 4}, "n_predict"),
    ({"regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"json_schema": {}, "structured_outputs": {"regex": "a"}}, "json_schema"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
    ({"regex": 3}, "regex"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
]


@pytest.mark.parametrize(("fields", "name"), WRONG, ids=[str(fields) for fields, _ in WRONG])
def test_errors_name_the_field_as_it_was_given(fields: dict[str, Any], name: str) -> None:
    with refused(ApiError, name, field=name) as caught:
        chat(**fields)
    assert caught.value.param == name
    assert str(caught.value).startswith(name)


WHOLE: list[tuple[str, Any]] = [
    ("max_tokens", 3.0), ("max_completion_tokens", 3.0), ("seed", 1.0), ("seed", -1.0), ("top_k", 5.0), ("n", 1.0),
    ("min_tokens", 2.0), ("top_logprobs", 2.0), ("stop_token_ids", [3.0, 4]), ("specexport", {"num_draft_tokens": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WHOLE, ids=str)
def test_integers_with_a_point(name: str, value: Any) -> None:
    whole = json.loads(json.dumps(value).replace(".0", ""))
    wanted = chat(**{name: whole}).request
    assert chat(strict=True, **{name: value}).request == wanted
    assert repr(chat(**{name: value}).request) == repr(wanted)


def test_integers_with_a_point_in_prompts_and_nowhere_else() -> None:
    assert repr(text(prompt=[1.0, 2]).request.prompt) == "[1, 2]"
    assert repr(text(prompt=[[1.0], [2]], logprobs=2.0).request.prompt) == "[[1], [2]]"
    schema = {"const": 1.0, "minimum": 2.0}
    found = chat(
        response_format={"type": "json_object", "schema": schema}, max_tokens=3.0, chat_template_kwargs={"a": 2.0}
    ).request
    assert repr(found.response_format.schema) == repr(schema)
    assert repr(found.chat_template_kwargs) == "{'a': 2.0}"


@pytest.mark.parametrize("value", [1.5, 1e30, "3", True, 0.0])
def test_what_is_no_integer(value: Any) -> None:
    with refused(ApiError, field="max_tokens"):
        chat(max_tokens=value)


def test_a_byte_order_mark_is_skipped() -> None:
    body = json.dumps({"messages": [HELLO]}).encode("utf-8-sig")
    assert parse(ChatRequest, body, False).request == chat().request
