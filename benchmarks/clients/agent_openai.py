"""One turn of an agent of the package `openai-agents` with the tools of a coding agent, in its default settings."""

from __future__ import annotations

import sys
from typing import Any

import openai
from agents import Agent, FunctionTool, Runner, set_default_openai_client, set_tracing_disabled
from harness import MODEL, TOOLS

VERBS = ("read", "write", "list", "search", "move", "copy", "delete", "compare")
THINGS = ("file", "folder", "branch")
INSTRUCTIONS = "You are a coding agent. Call a tool where it helps, and say in the end what you did and why."


async def nothing(context: Any, arguments: str) -> str:
    return ""


def a_tool(verb: str, thing: str) -> FunctionTool:
    path = {"type": "string", "description": f"Path of the {thing}, relative to the root of the repository."}
    limit = {"type": "integer", "description": "At most so many lines are returned. The default is 200."}
    fields = {"path": path, "limit": limit}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return FunctionTool(f"{verb}_{thing}", f"Use this to {verb} a {thing} of the repository.", schema, nothing)


set_tracing_disabled(True)
set_default_openai_client(openai.AsyncOpenAI(base_url=TOOLS, api_key="none", max_retries=0, timeout=600))
tools = [a_tool(verb, thing) for verb in VERBS for thing in THINGS]
Runner.run_sync(Agent(name="coder", model=MODEL, instructions=INSTRUCTIONS, tools=[*tools]), sys.argv[1], max_turns=1)
