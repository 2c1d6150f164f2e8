"""Answers of `/v1/responses`, judged by openai's own types in strict mode."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from support.serving import Client

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PARTS = {"output_text": "text", "reasoning_text": "text", "function_call_arguments": "arguments"}


def respond(client: Client, **fields: Any) -> dict[str, Any]:
    status, _, body = client.ask("POST", PATH, {"input": "Hello", "temperature": 0, **fields})
    assert status == 200, body
    Response.model_validate_json(body, strict=True)
    found: dict[str, Any] = json.loads(body)
    return found


def events(client: Client, **fields: Any) -> list[dict[str, Any]]:
    """Of a stream, each with its name, and numbered."""
    status, headers, body = client.ask("POST", PATH, {"input": "Hello", "temperature": 0, **fields, "stream": True})
    assert status == 200, body
    assert headers["content-type"].startswith("text/event-stream")
    found = []
    for text in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = text.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENT.validate_json(data.removeprefix("data: "), strict=True)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def replayed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that the events of a stream build, each checked against what came before it."""
    first, second, *rest, last = found
    assert [first["type"], second["type"]] == ["response.created", "response.in_progress"]
    assert last["type"] == f"response.{last['response']['status']}"
    assert first["response"]["status"] == second["response"]["status"] == "in_progress"
    items: list[dict[str, Any]] = []
    text, begun, done = "", False, True
    for event in rest:
        kind = event["type"].removeprefix("response.")
        item = event.get("item")
        if kind == "output_item.added":
            assert done, "the one before is still open"
            assert event["output_index"] == len(items)
            assert item["status"] == "in_progress"
            assert item.get("content", []) == []
            assert item.get("arguments", "") == ""
            items, text, begun, done = [*items, item], "", False, False
            continue
        assert event["output_index"] == len(items) - 1
        assert not done
        if kind == "output_item.done":
            whole = item["arguments"] if "arguments" in item else item["content"][0]["text"]
            assert (item["id"], whole, item["status"]) == (items[-1]["id"], text, item["status"])
            assert begun or "arguments" in item
            items[-1], done = item, True
            continue
        assert event["item_id"] == items[-1]["id"]
        if kind.startswith("content_part"):
            assert event["part"]["text"] == text
            begun = True
        elif kind.endswith(".delta"):
            assert begun or "arguments" in items[-1]
            assert event["delta"]
            text += event["delta"]
        else:
            assert event[PARTS[kind.removesuffix(".done")]] == text
    assert done, "the last one is still open"
    assert last["response"]["output"] == items
    response: dict[str, Any] = last["response"]
    assert all(response[name] == first["response"][name] for name in ("id", "created_at", "model", "tools"))
    return response


def bare(response: dict[str, Any]) -> dict[str, Any]:
    """Without ids and times, which are new for each answer."""
    items = [{name: one for name, one in item.items() if name not in ("id", "call_id")} for item in response["output"]]
    usage = {name: response["usage"][name] for name in ("input_tokens", "output_tokens", "output_tokens_details")}
    rest = {name: response[name] for name in ("status", "error", "incomplete_details", "text", "tools", "tool_choice")}
    return {"output": items, "usage": usage, **rest}


def both(client: Client, **fields: Any) -> dict[str, Any]:
    """The whole answer, which its stream repeats."""
    whole = respond(client, **fields)
    assert bare(replayed(events(client, **fields))) == bare(whole)
    return whole
