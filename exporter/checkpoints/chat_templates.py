"""Which of a tokenizer's chat templates a bundle has: those that transformers chooses by itself."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

DEFAULT, TOOL_USE = "default", "tool_use"  # the latter for messages with tools, as transformers' `get_chat_template`


def named_templates(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """The templates by name; a single one is the default."""
    templates = tokenizer.chat_template
    return dict(templates) if isinstance(templates, dict) else {DEFAULT: templates} if templates is not None else {}


def chat_template(tokenizer: PreTrainedTokenizerBase, tools: bool) -> str | None:
    """Jinja source of the template for messages, or of another one for messages with tools; None without."""
    return named_templates(tokenizer).get(TOOL_USE if tools else DEFAULT)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Special tokens by the names that templates have for them, such as `bos_token`."""
    return {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}


def unused_templates(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Says which templates a bundle leaves out, and that there is none for messages; None where neither is so."""
    names = named_templates(tokenizer)
    left_out = [name for name in names if name not in (DEFAULT, TOOL_USE)]
    if not names or (DEFAULT in names and not left_out):
        return None
    note = f"of the chat templates {', '.join(names)}, "
    if left_out:
        note += f"{', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} left out"
    if DEFAULT not in names:
        note += f"{', and ' * bool(left_out)}none is called {DEFAULT}, which messages"
        note += f" without tools need; {TOOL_USE} is for messages with tools" if TOOL_USE in names else " need"
    return f"{note}; to use another one, load the bundle with --chat-template FILE"
