"""Plain against speculative decoding with the demo bundle, on held-out prompts of three routes.

Run it as: python examples/demo.py demo.bundle
"""

from __future__ import annotations

import argparse
from itertools import zip_longest
from pathlib import Path

import specexport
from rich.console import Console
from rich.table import Table
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent / "prompts"
PER_ROUTE = 8
NEW_TOKENS = 96


def first_prompts(route: str) -> list[str]:
    prompts = read_prompts(PROMPTS / f"{route}.jsonl")
    return [prompt for prompt in prompts if isinstance(prompt, str)][:PER_ROUTE]


def show_stream(session: specexport.Session, console: Console, prompt: str) -> None:
    """One continuation as it streams, each round's tokens in a colour of their own."""
    console.print(prompt[-240:], style="dim", end="", markup=False, highlight=False)
    for index, chunk in enumerate(session.stream(prompt, max_new_tokens=NEW_TOKENS)):
        console.print(chunk.text, style=("green", "cyan")[index % 2], end="", markup=False, highlight=False)
    console.print(
        f"\n\nEach colour is one round: {chunk.statistics.mean_acceptance_length:.2f} tokens a pass of the target.\n"
    )


def compare(session: specexport.Session, prompt: str) -> tuple[specexport.Generation, specexport.Generation]:
    """The same prompt plain and speculative, each from an empty cache."""
    found = []
    for speculate in (False, True):
        session.reset()
        found.append(session.generate(prompt, max_new_tokens=NEW_TOKENS, speculate=speculate, stop_token_ids=()))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    console = Console()
    console.width = max(console.width, 112)
    session = specexport.load(parser.parse_args().bundle)
    show_stream(session, console, first_prompts("code")[0])
    columns = (
        "route",
        "plain tokens/s",
        "speculative",
        "speedup",
        "tokens/round",
        "accepted by position",
        "host",
        "same output",
    )
    table = Table(*columns, title=f"{PER_ROUTE} held-out prompts a route, {NEW_TOKENS} new tokens each, greedy")
    for route in ("code", "prose", "random"):
        pairs = [compare(session, prompt) for prompt in first_prompts(route)]
        plain, speculative = ([pair[side].statistics for pair in pairs] for side in (0, 1))
        plain_time, time = (sum(row.decode_seconds for row in rows) for rows in (plain, speculative))
        tokens = sum(row.emitted for row in speculative)
        rounds = sum(row.rounds for row in speculative)
        accepted = [
            sum(counts) for counts in zip_longest(*(row.accepted_by_position for row in speculative), fillvalue=0)
        ]
        drafted = [
            sum(counts) for counts in zip_longest(*(row.drafted_by_position for row in speculative), fillvalue=0)
        ]
        table.add_row(
            route,
            f"{tokens / plain_time:.0f}",
            f"{tokens / time:.0f}",
            f"{plain_time / time:.2f}x",
            f"{(sum(accepted) + rounds) / rounds:.2f}",
            " ".join(f"{a / d:.0%}" for a, d in zip(accepted, drafted, strict=True)),
            f"{sum(row.host_seconds for row in speculative) / time:.1%}",
            f"{sum(one.tokens == other.tokens for one, other in pairs)}/{len(pairs)}",
        )
    console.print(table)
    console.print(
        "Where the draft cannot guess, speculation costs time: measure on your own prompts before you switch it on."
    )


if __name__ == "__main__":
    main()
