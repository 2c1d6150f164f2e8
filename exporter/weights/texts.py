"""Calibration texts: the user's prompts, or the built-in set.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import ParameterError
from ...runtime.text.messages import joined
from ...runtime.text.prompt_file import PromptLine, read_prompt_lines

DEFAULT = Path(__file__).parent / "default_texts.jsonl"
# Fewer tokens do not show which channels are large.
MIN_TOKENS = 512


def read_texts(path: Path | None) -> tuple[str, ...]:
    """The prompts of a JSONL file as `specexport bench` reads it; None for the built-in set.

    The built-in set has prose, code and chat in many languages. Messages are reduced to their contents. Raises
    `ParameterError` for a file that cannot be used, and for token ids, which target and draft may not share.
    """
    lines, _ = read_prompt_lines(DEFAULT if path is None else path, skip_invalid=False, routed=False)
    return tuple(_text(line) for line in lines)


def require_tokens(count: int, bound: str = "") -> None:
    """Raises `ParameterError` for fewer than `MIN_TOKENS`. bound: what precedes a number that is not exact."""
    if count < MIN_TOKENS:
        raise ParameterError(
            f"the calibration prompts have {bound}{count} tokens, expected at least {MIN_TOKENS}; "
            "give more or longer ones, or leave out --calibration-prompts to use the built-in set",
            "calibration_prompts",
        )


def require_length(texts: Sequence[str], tokenizer: Path) -> None:
    """Raises `ParameterError` where they surely have too few tokens: by the file of the tokenizer, or else as if every
    byte were one. Either way a tokenizer may add two to a text.
    """
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_file(str(tokenizer))
        found.no_truncation()
        count = sum(len(one.ids) for one in found.encode_batch(list(texts)))
    except Exception:  # there is none, or a damaged one, which is refused when the checkpoint is read
        count = sum(len(text.encode()) for text in texts)
    require_tokens(count + 2 * len(texts), "at most ")


def _text(line: PromptLine) -> str:
    prompt = line.prompt
    if isinstance(prompt, str):
        return _checked(prompt, line)
    messages = [item for item in prompt if isinstance(item, dict)]
    if not messages:
        raise ParameterError(
            f"{line.where}: found token ids, expected text or messages, since the draft's token ids may differ",
            "prompt",
        )
    contents = [message.get("content") for message in joined(messages)]
    return _checked("\n\n".join(content for content in contents if isinstance(content, str)), line)


def _checked(text: str, line: PromptLine) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{line.where}: found half of a surrogate pair, expected text", "prompt") from None
    return text
