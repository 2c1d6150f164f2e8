"""The table of fields: those that are honoured, accepted without effect, refused by name, or ignored.

Honoured are the fields of the request's struct (`requests.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ApiError, unsupported

ANY = object()
# Accepted if they ask for the default behaviour.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "user": (ANY,),
    "metadata": (ANY,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (ANY,),
    "safety_identifier": (ANY,),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "ignore_eos": (False,),
    "parallel_tool_calls": (ANY,),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "suffix": ("",),
    "functions": ([],),
    "add_generation_prompt": (True,),
    "skip_special_tokens": (True,),
}
# Fields of the object `specexport`. Its `route` is none: as a field of the request, it may be another server's.
OWN = ("drafter", "num_draft_tokens", "speculate", "show_drafts", "banned_tokens")
REFUSED: dict[str, str] = {
    "n": "one answer per request; send more requests for more",
    "best_of": "one answer at a time",
    "echo": "the prompt is not echoed",
    "suffix": "text is only continued at its end",
    "store": "nothing is stored",
    "service_tier": "there is one tier",
    "modalities": "this model reads and writes text only",
    "audio": "this model reads and writes text only",
    "chat_template": "templates come from the bundle, or from the server's --chat-template",
    "chat_template_kwargs": "only conversations have a template; use /v1/chat/completions",
    "functions": "it was replaced by tools",
    "function_call": "it was replaced by tool_choice",
    "web_search_options": "this server opens no connections",
    "use_beam_search": "there is one sequence at a time",
    "prompt_logprobs": "only generated tokens have log-probabilities",
    "ignore_eos": "give stop_token_ids instead",
    "add_generation_prompt": "the answer is always generated",
    "skip_special_tokens": "special tokens have no text here",
    "dimensions": "there are no embeddings here",
    "guided_json": "give structured_outputs instead",
    "guided_regex": "give structured_outputs instead",
    "guided_choice": "give structured_outputs instead",
    "guided_grammar": "give structured_outputs instead",
    "tools": "only conversations call tools; use /v1/chat/completions",
    "tool_choice": "only conversations call tools; use /v1/chat/completions",
}


def check_kinds(raw: Mapping[str, Any]) -> None:
    """Raises `ApiError` for kinds of tools that the OpenAI API has and this server does not."""
    choice, tools = raw.get("tool_choice"), raw.get("tools")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind in ("allowed_tools", "custom"):
        raise unsupported("tool_choice.type", f"{kind!r}; give none, auto, required, or the name of a function")
    for place, tool in enumerate(tools if isinstance(tools, list) else []):
        if isinstance(tool, Mapping) and tool.get("type") == "custom":
            raise unsupported(f"tools[{place}].type", "'custom'; a tool is a function with parameters")


def check_fields(raw: Mapping[str, Any], honoured: frozenset[str], strict: bool) -> list[str]:
    """Names of the ignored fields, in order. Raises `ApiError` for refused ones."""
    check_kinds(raw)
    ignored = []
    for name, value in raw.items():
        if name in honoured or value is None:
            continue
        if name in WITHOUT_EFFECT and any(_same(value, allowed) for allowed in WITHOUT_EFFECT[name]):
            continue
        if name in OWN:
            told = f'{name} belongs in the object specexport: "specexport": {{"{name}": ...}}'
            raise ApiError(400, "unsupported_parameter", told, name)
        if name in REFUSED:
            raise unsupported(name, REFUSED[name])
        if strict:
            raise ApiError(400, "unknown_parameter", f"{name[:64]!r} is not a known field", name[:64])
        ignored.append(name)
    return ignored


def _same(value: Any, allowed: Any) -> bool:
    return allowed is ANY or (type(value) is type(allowed) and value == allowed)
