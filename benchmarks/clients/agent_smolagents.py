"""One step of smolagents' `CodeAgent`, whose tools and examples are in its system prompt."""

from __future__ import annotations

import sys

from harness import MODEL, TOOLS
from smolagents import CodeAgent, OpenAIServerModel, tool


@tool
def read_file(path: str) -> str:
    """The text of a file.

    Args:
        path: the file's path
    """
    return path


model = OpenAIServerModel(MODEL, api_base=TOOLS, api_key="none", temperature=0)
CodeAgent([read_file], model, max_steps=1).run(sys.argv[1])
