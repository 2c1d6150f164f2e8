"""What prompt caching saves agents: the time to the first token of two sessions that share system prompt and tools.

    python benchmarks/clients/agent_prompts.py chat.bundle [--only aider,smolagents]

BUNDLE must have room for their prompts (`make chat` gives 8192 tokens). Each session is a process of its own with
another task, so only the agent's own part of the prompt is the same. Answers end after a few tokens: a small model does
nothing useful with these prompts, and only reading them is measured. The first request of each session counts; its
figures are those of the server's log. Environments are those of run.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clients import TEMPLATE, Client
from environments import make
from servers import environment

OPENAI = "openai==3.57.0"
SERVERS: dict[str, tuple[str, ...]] = {"TOOLS_URL": ("--chat-template", str(TEMPLATE), "--max-tokens", "4")}
AGENTS = {
    "smolagents": Client("agent_smolagents.py", ("smolagents==1.26.0", OPENAI), SERVERS),
    "openai-agents": Client("agent_openai.py", ("openai-agents==0.24.0", OPENAI), SERVERS),
    "aider": Client("agent_aider.py", ("aider-chat==0.86.2",), SERVERS),
}
TASKS = ("What do the tests of this project cover?", "Rename the function `area` to `surface`.")


def generated(log: Path) -> list[dict[str, Any]]:
    """The log's lines of answered requests that generate."""
    lines = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("first_token_seconds")]


def first_requests(name: str, agent: Client, bundle: Path, folder: Path) -> list[dict[str, Any]]:
    """The first request of each session, all with one server."""
    command, log, found = make(name, agent), folder / f"{name}.server", []
    with environment(bundle, log, agent.servers) as variables:
        for number, task in enumerate(TASKS):
            before = len(generated(log))
            work = folder / f"{name}-{number}"
            work.mkdir()
            with (folder / f"{name}-{number}.out").open("wb") as output:
                subprocess.run([*command, task], cwd=work, env=variables, stdout=output, stderr=output, check=False)
            lines = generated(log)[before:]
            if not lines:
                text = (folder / f"{name}-{number}.out").read_text(encoding="utf-8", errors="replace")
                sys.exit(f"{name} sent no request that was answered; it said: {text[-2000:]}")
            found.append(lines[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--only", default=",".join(AGENTS), help="comma-separated; default: %(default)s")
    arguments = parser.parse_args()
    print("| agent | prompt | first token | next session: prompt, of it cached | first token | ratio |")
    print("|---|---|---|---|---|---|")
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            first, second = first_requests(name, AGENTS[name], arguments.bundle, Path(folder))
        seconds = [line["first_token_seconds"] for line in (first, second)]
        prompt, cached = second["prompt_tokens"], second["cached_tokens"]
        print(
            f"| {name} | {first['prompt_tokens']} | {seconds[0]:.2f} s | {prompt}, {cached} | {seconds[1]:.3f} s | "
            f"{seconds[1] / seconds[0]:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
