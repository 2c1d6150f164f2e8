"""Calibration texts: the user's prompts, or the built-in set.

Imports no torch.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import ParameterError
from ...runtime.text.messages import joined
from ...runtime.text.prompt_file import PromptLine, read_prompt_lines

DEFAULT = Path(__file__).parent / "default_texts.jsonl"


def read_texts(path: Path | None) -> tuple[str, ...]:
    """The prompts of a JSONL file as `specexport bench` reads it; None for the built-in set.

    The built-in set has prose, code and chat in many languages. Messages are reduced to their contents. Raises
    `ParameterError` for a file that cannot be used, and for token ids, which target and draft may not share.
    """
    lines, _ = read_prompt_lines(DEFAULT if path is None else path, skip_invalid=False, routed=False)
    return tuple(_text(line) for line in lines)


def _text(line: PromptLine) -> str:
    prompt = line.prompt
    if isinstance(prompt, str):
        return prompt
    messages = [item for item in prompt if isinstance(item, dict)]
    if not messages:
        raise ParameterError(
            f"{line.where}: found token ids, expected text or messages, since the draft's token ids may differ",
            "prompt",
        )
    contents = [message.get("content") for message in joined(messages)]
    return "\n\n".join(content for content in contents if isinstance(content, str))
