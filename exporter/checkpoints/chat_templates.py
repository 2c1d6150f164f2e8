"""Which of a tokenizer's chat templates a bundle has: those that transformers chooses by itself.

Tokens that a tokenizer has and the model has no embedding of, as after adding some without resizing it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from ...errors import BundleError, CheckpointError, MissingPackageError, PromptError
from ...runtime.text.chat_template import ChatTemplate
from ...runtime.tools.formats import PROBE as TOOL

DEFAULT, TOOL_USE = "default", "tool_use"  # the latter for messages with tools, as transformers' `get_chat_template`


def named_templates(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """The templates by name; a single one is the default."""
    found = tokenizer.chat_template
    return dict(found) if isinstance(found, dict) else {DEFAULT: found} if found is not None else {}


def chat_template(tokenizer: PreTrainedTokenizerBase, tools: bool) -> str | None:
    """Jinja source of the template for messages, or of another one for messages with tools; None without."""
    return named_templates(tokenizer).get(TOOL_USE if tools else DEFAULT)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Special tokens by the names that templates have for them, such as `bos_token`."""
    return {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}


def used_templates(tokenizer: PreTrainedTokenizerBase) -> list[ChatTemplate]:
    sources = [chat_template(tokenizer, tools) for tools in (False, True)]
    return [ChatTemplate(source, special_tokens(tokenizer)) for source in sources if source is not None]


def unused_templates(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Says which templates a bundle leaves out, and that there is none for messages; None where neither is so."""
    names = named_templates(tokenizer)
    left_out = [name for name in names if name not in (DEFAULT, TOOL_USE)]
    if not names or (DEFAULT in names and not left_out):
        return None
    told = f"of the chat templates {', '.join(names)}, "
    if left_out:
        told += f"{', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} left out"
    if DEFAULT not in names:
        told += f"{', and ' * bool(left_out)}none is called {DEFAULT}, which messages"
        told += f" without tools need; {TOOL_USE} is for messages with tools" if TOOL_USE in names else " need"
    return f"{told}; to use another one, load the bundle with --chat-template FILE"


SAID = "a"  # by every message of a probe, and a prompt as text
USER, SYSTEM, ASSISTANT = ({"role": role, "content": SAID} for role in ("user", "system", "assistant"))
CONVERSATIONS = ([USER], [SYSTEM, USER], [USER, ASSISTANT, USER])
SHOWN = 4
REMEDY = "resize the embeddings (model.resize_token_embeddings(len(tokenizer))) and train the new rows"


class Model(Protocol):
    """What is asked of a checkpoint here."""

    @property
    def source(self) -> str: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...


def refuse_beyond(target: Model) -> None:
    """Raises `CheckpointError` where each text, or conversations without tools, would hold such a token."""
    beyond, encode = _beyond(target), target.tokenizer.backend_tokenizer.encode
    if not beyond:
        return
    writers = {"its tokenizer": [encode(SAID).ids]}
    for template in used_templates(target.tokenizer)[:1]:
        writers["its chat template"] = [encode(text, add_special_tokens=False).ids for text in _rendered(template)]
    for writer, texts in writers.items():
        if used := {token for ids in texts for token in ids if token in beyond}:
            raise CheckpointError(
                f"{target.source}: {writer} writes {_named(used, beyond)}, and the model has embeddings of "
                f"{target.vocab_size} tokens only; {REMEDY}"
            )


def notes_of_beyond(checkpoint: Model) -> Iterator[str]:
    """Warnings about such tokens that do not keep the model from being built."""
    beyond = _beyond(checkpoint)
    if not beyond:
        return
    count = f"{len(beyond)} token{'s' * (len(beyond) > 1)}"
    yield (
        f"{checkpoint.source}: the tokenizer has {count} beyond the model's {checkpoint.vocab_size} embeddings, "
        f"{_named(beyond, beyond)}; prompts that contain one are refused, and a draft reads another in its place"
    )
    if ends := beyond.keys() & set(checkpoint.stop_token_ids):
        yield f"{checkpoint.source}: texts are to end with {_named(ends, beyond)}, which the model cannot write"
    encode = checkpoint.tokenizer.backend_tokenizer.encode
    for template in used_templates(checkpoint.tokenizer)[-1:]:
        texts = _rendered(template, [TOOL])
        if used := {token for text in texts for token in encode(text, add_special_tokens=False).ids} & beyond.keys():
            yield (
                f"{checkpoint.source}: for tools its chat template writes {_named(used, beyond)}, so requests with "
                f"tools are refused; {REMEDY}"
            )


def _beyond(checkpoint: Model) -> dict[int, str]:
    """Contents by id."""
    size = checkpoint.vocab_size
    if not size:
        return {}
    return {token: name for name, token in checkpoint.tokenizer.get_vocab().items() if token >= size}


def _rendered(template: Any, tools: Sequence[Any] | None = None) -> Iterator[str]:
    """What it writes of conversations that it accepts."""
    for messages in CONVERSATIONS:
        try:
            yield template.render(messages, tools)
        except PromptError:
            continue
        except (BundleError, MissingPackageError):  # no template: a request says it
            return


def _named(tokens: Collection[int], names: dict[int, str]) -> str:
    shown = sorted(tokens)[:SHOWN]
    others = len(tokens) - len(shown)
    named = ", ".join(f"{names[token]!r} ({token})" for token in shown)
    return named + (f" and {others} others" if others else "")
