"""Requests that must be answered, drawn from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexport.runtime.text.prompt_file import read_prompts

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPTS = Path(__file__).parent.parent.parent / "examples/prompts"
MAX_TOKENS = 48  # of an answer
FIRST_ID = 300  # smaller ids may be special tokens
SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]},
    {"type": "array", "items": {"enum": ["red", "green", "日本語"]}, "minItems": 1, "maxItems": 3},
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
)
REGEXES = ("[a-z]{3,12}", "(yes|no), (because|although) [a-z ]{1,20}\\.", "\\d{4}-\\d{2}-\\d{2}")
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in (
        ("weather", {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}),
        ("add", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}),
    )
]


@dataclass(frozen=True)
class Good:
    """kind: what it has in addition to a prompt. fields: without `stream`."""

    kind: str
    path: str
    fields: dict[str, Any]

    def body(self, stream: bool) -> bytes:
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return json.dumps({**self.fields, **more}).encode()


class Pool:
    """`count` different requests. capacity: of the bundle, in tokens. tools: whether its template supports tools."""

    def __init__(self, seed: int, count: int, capacity: int, tools: bool) -> None:
        self._chance, self._capacity, self._tools = random.Random(seed), capacity, tools
        rows = [
            prompt
            for name in ("code", "prose", "random")
            for prompt in read_prompts(PROMPTS / f"{name}.jsonl")[:60]
            if isinstance(prompt, str)
        ]
        # An ASCII letter is at most one token, others are up to four.
        self._texts = [text.encode("ascii", "ignore").decode() for text in rows if text.isascii()]
        self._others = [text[: capacity // 16] for text in rows if not text.isascii()]
        self.requests = [self._draw() for _ in range(count)]

    def _draw(self) -> Good:
        kinds = ["plain", "long", "ids", "several", "schema", "regex", "choice", "options"]
        kind = self._chance.choice([*kinds, "tools"] if self._tools else kinds)
        chat = kind == "tools" or (kind not in ("ids", "several") and self._chance.random() < 0.5)
        fields: dict[str, Any] = {"max_tokens": self._chance.randint(1, MAX_TOKENS)}
        fields |= self._sampling() | self._of_kind(kind)
        if chat:
            turns = [{"role": "user", "content": self._text(kind)}]
            if self._chance.random() < 0.5:
                turns += [{"role": "assistant", "content": self._text("")}, {"role": "user", "content": "And?"}]
            return Good(kind, CHAT, fields | {"messages": turns})
        return Good(kind, COMPLETIONS, {"prompt": self._text(kind)} | fields)

    def _text(self, kind: str) -> str:
        if kind == "long":
            text = "\n".join(self._chance.sample(self._texts, 8))
            return text[: self._chance.randint(self._capacity // 3, self._capacity * 3 // 4)]
        if self._chance.random() < 0.2:
            return self._chance.choice(self._others)
        return self._chance.choice(self._texts)[: self._chance.randint(1, self._capacity // 8)]

    def _sampling(self) -> dict[str, Any]:
        """Greedy with the session's own schedule, or sampled with a seed and a fixed number of draft tokens, on which
        the draws depend.
        """
        if self._chance.random() < 0.5:
            return {"temperature": 0}
        own = {"speculate": False} if self._chance.random() < 0.3 else {"num_draft_tokens": self._chance.randint(1, 4)}
        found: dict[str, Any] = {"temperature": 0.8, "seed": self._chance.randrange(1 << 32), "specexport": own}
        for name, value in (("top_p", 0.9), ("top_k", 40), ("min_p", 0.05)):
            if self._chance.random() < 0.3:
                found[name] = value
        return found

    def _of_kind(self, kind: str) -> dict[str, Any]:
        match kind:
            case "ids":
                count = self._chance.randint(1, self._capacity * 3 // 4)
                return {"prompt": [self._chance.randrange(FIRST_ID, FIRST_ID + 300) for _ in range(count)]}
            case "several":
                return {"prompt": [self._text("") for _ in range(self._chance.randint(2, 4))], "max_tokens": 8}
            case "schema":
                schema = {"name": "it", "schema": self._chance.choice(SCHEMAS)}
                return {"response_format": {"type": "json_schema", "json_schema": schema}}
            case "regex":
                return {"structured_outputs": {"regex": self._chance.choice(REGEXES)}}
            case "choice":
                return {"structured_outputs": {"choice": ["left", "right", "neither of both"]}}
            case "tools":
                named = {"type": "function", "function": {"name": "weather"}}
                return {"tools": TOOLS, "tool_choice": self._chance.choice(["auto", "required", named])}
            case "options":
                found = [
                    {"stop": ["\n\n", "self"]},
                    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
                    {"logit_bias": {str(FIRST_ID + i): 5 for i in range(20)}},
                    {"min_tokens": 8, "max_tokens": 24},
                    {"prediction": {"type": "content", "content": self._text("")}},
                ]
                return self._chance.choice(found)
        return {}
