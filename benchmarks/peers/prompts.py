"""The requests for all systems: the held-out texts of the demo pair, or the prompts of a file."""

from __future__ import annotations

import json
from pathlib import Path

from interleave import Request
from specexport.runtime.text.prompt_file import PromptLine, read_prompt_lines
from transformers import AutoTokenizer

PROMPTS = Path(__file__).parent.parent.parent / "examples/prompts"


def read_requests(target: Path, file: Path | None, longest: int, new_tokens: int) -> list[Request]:
    """Requests from the file, or alternating from the routes code and prose, in ids of the target's tokenizer.

    Texts are cut to `longest` tokens. Messages go through the target's chat template and are not cut; their answers end
    where the target ends them.
    """
    tokenizer = AutoTokenizer.from_pretrained(target)
    ends = end_tokens(target)

    def request(line: PromptLine) -> Request:
        if isinstance(line.prompt, str):
            return Request(line.route, tokenizer(line.prompt).input_ids[:longest], new_tokens)
        if isinstance(line.prompt, list) and isinstance(line.prompt[0], int):
            return Request(line.route, line.prompt, new_tokens)
        text = tokenizer.apply_chat_template(line.prompt, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        return Request(line.route, ids, new_tokens, ends)

    if file is not None:
        lines = read_prompt_lines(file)[0]
    else:
        routes = [read_prompt_lines(PROMPTS / f"{route}.jsonl")[0] for route in ("code", "prose")]
        lines = [line for pair in zip(*(reversed(route) for route in routes), strict=False) for line in pair]
    return [request(line) for line in lines]


def end_tokens(target: Path) -> frozenset[int]:
    """The end tokens in the checkpoint's configurations."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = target / name
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
        found |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
    return frozenset(found)
