"""Several chat templates of a tokenizer, and tokens that the model has no embeddings of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Bundle
from specexport.errors import CheckpointError
from specexport.exporter.bundle_files import unused_templates, write_text
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.pair import check_draft, check_target
from specexport.runtime.text.encode import PromptEncoder
from specexport.runtime.tools.tool import Tool
from support.refusals import refused
from support.tiny import CHAT, make_tokenizer, save_checkpoint
from transformers import AutoTokenizer

CALL = "{'name': call.function.name, 'arguments': call.function.arguments} | tojson"
TOOLS = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ " + CALL + " }}</tool_call>{% endfor %}{% endfor %}"
)
USER = [{"role": "user", "content": "a"}]
TOOL = Tool("f", "", {"type": "object", "properties": {}})


def checkpoint(folder: Path, templates: Any, special: tuple[str, ...] = (), **changes: Any) -> Checkpoint:
    tokenizer = make_tokenizer()
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = templates
    save_checkpoint(folder, tokenizer=tokenizer, **changes)
    return find_checkpoint(str(folder))


def encoder(found: Checkpoint, built: Path, place: Path, template: Path | None = None) -> PromptEncoder:
    """Of a bundle with this tokenizer and its templates."""
    place.mkdir()
    manifest = replace(Bundle.open(built).manifest, text=write_text(found, place))
    return PromptEncoder(Bundle(place, manifest), template)


def test_messages_with_tools_have_the_template_that_transformers_takes(built: Path, tmp_path: Path) -> None:
    found = checkpoint(tmp_path / "t", {"default": CHAT, "tool_use": TOOLS})
    assert (tmp_path / "t" / "additional_chat_templates" / "tool_use.jinja").is_file()
    ours, theirs = encoder(found, built, tmp_path / "b"), AutoTokenizer.from_pretrained(tmp_path / "t")
    for tools in ([], [TOOL]):
        text = theirs.apply_chat_template(USER, tools=[tool.for_template for tool in tools] or None, tokenize=False)
        assert ours._tokens(USER, tools, {})[0] == ours.tokenizer.encode(text, add_special_tokens=False).ids
    assert ours.tool_format.trigger == "<tool_call>"
    assert unused_templates(found.tokenizer) is None


def test_a_file_replaces_both(built: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    ours = encoder(checkpoint(tmp_path / "t", {"default": CHAT, "tool_use": TOOLS}), built, tmp_path / "b", file)
    assert ours.encode(USER) == ours.encode(USER, [TOOL]) == ours.encode("a")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), None),
        (("default",), None),
        (("default", "tool_use"), None),
        (("default", "tool_use", "rag"), "rag is left out;"),
        (("default", "rag", "other"), "rag, other are left out;"),
        (("rag", "tool_use"), "rag is left out, and none is called default, which messages without tools need"),
        (("tool_use",), "none is called default, which messages without tools need"),
        (("rag",), "rag is left out, and none is called default, which messages need;"),
    ],
)
def test_what_a_bundle_leaves_out_is_named(names: tuple[str, ...], said: str | None) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = dict.fromkeys(names, CHAT) or None
    found = unused_templates(tokenizer)
    assert found is None if said is None else found is not None and said in found


def test_tokens_beyond_the_embeddings_are_named(tmp_path: Path) -> None:
    found = checkpoint(tmp_path / "t", CHAT, tuple(f"<|{number}|>" for number in range(6)))
    (note,) = found.warnings
    assert "6 tokens beyond the model's 288 embeddings, the first is '<|0|>' (288)" in note
    assert checkpoint(tmp_path / "u", CHAT).warnings == ()


def test_a_start_token_beyond_the_embeddings_is_refused(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    found = checkpoint(tmp_path / "t", None, ("<|user|>",))
    start = TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 288)])
    found.tokenizer.backend_tokenizer.post_processor = start
    with refused(CheckpointError, 288):
        check_target(found)
    with refused(CheckpointError, 288):
        check_draft(checkpoint(tmp_path / "u", None), found, 0.5)
