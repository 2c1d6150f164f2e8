"""The clients: what is installed for each, its script, and the servers that it talks to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TEMPLATE = HERE.parent / "reliability/tools.jinja"  # for models whose own template has no tools

# Options of `specexport serve`, by the variable in which the script finds the server's address.
PLAIN: dict[str, tuple[str, ...]] = {"PLAIN_URL": ()}
TOOLS = PLAIN | {"TOOLS_URL": ("--chat-template", str(TEMPLATE))}
SHORT: dict[str, tuple[str, ...]] = {"PLAIN_URL": ("--max-tokens", "4")}  # generated requests rarely limit themselves

ZOD = "zod@4.6.7"


@dataclass(frozen=True)
class Client:
    """packages: for pip, or for npm if the script is one of node; the first is the client itself."""

    script: str
    packages: tuple[str, ...]
    servers: dict[str, tuple[str, ...]]

    @property
    def in_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def version(self) -> str:
        return self.packages[0].replace("==", "@").rpartition("@")[2]


CLIENTS = {
    "openai": Client("try_openai.py", ("openai==3.57.0",), TOOLS),
    "openai-npm": Client("try_openai.mjs", ("openai@6.49.0", ZOD), TOOLS),  # 7 needs Node.js 22, as ai 7 does
    "ai": Client(
        "try_ai.mjs", ("ai@6.0.325", "@ai-sdk/openai-compatible@2.0.92", "@ai-sdk/openai@3.0.141", ZOD), TOOLS
    ),
    "litellm": Client("try_litellm.py", ("litellm==1.110.2", "openai==3.57.0"), TOOLS),
    "langchain": Client("try_langchain.py", ("langchain-openai==1.7.4", "openai==3.57.0"), TOOLS),
    "pydantic-ai": Client("try_pydantic_ai.py", ("pydantic-ai-slim[openai]==2.68.0", "openai==3.57.0"), TOOLS),
    "openai-agents": Client("try_openai_agents.py", ("openai-agents==0.24.0", "openai==3.57.0"), TOOLS),
    # torch as in constraints.txt: guidellm asks for any.
    "guidellm": Client("try_guidellm.py", ("guidellm==0.8.1", "torch==2.13.0"), PLAIN),
    "lm-eval": Client(
        "try_lm_eval.py", ("lm-eval[api]==0.4.13", "transformers==5.24.0", "babel==2.19.0", "torch==2.13.0"), PLAIN
    ),
    "aiperf": Client("try_aiperf.py", ("aiperf==0.13.0",), PLAIN),
    "schemathesis": Client("try_schemathesis.py", ("schemathesis==4.32.5",), SHORT),
}
