"""Plain against speculative decoding with the demo bundle, on held-out prompts of three routes.

Then it shows what calibration gains: fixed numbers of draft tokens against the policy of `specexport calibrate`.

Run it as: python examples/demo.py demo.bundle
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import specexport
from rich.console import Console
from rich.table import Table
from specexport.bundle import ALIAS
from specexport.calibration.calibrate import calibrate, check_packages
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.options import CalibrateOptions
from specexport.runtime.drafting.names import LOOKUP
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent / "prompts"
ROUTES = ("code", "prose", "random")
PER_ROUTE = 3
NEW_TOKENS = 64
# Calibration uses other prompts than those that are shown; a real one needs more of them.
CALIBRATED = slice(100, 104)
REPEATS = 3  # of each way and prompt: the median of so short a time is not moved by what else the host does
UNCALIBRATED = "not calibrated"
FEWER_TOKENS = 48  # new tokens per calibration prompt, so that the demo stays short


def some_prompts(route: str, which: slice = slice(PER_ROUTE)) -> list[str]:
    prompts = read_prompts(PROMPTS / f"{route}.jsonl")
    return [prompt for prompt in prompts if isinstance(prompt, str)][which]


def show_stream(session: specexport.Session, console: Console, prompt: str) -> None:
    """Print one continuation as it streams, alternating the colour from round to round."""
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


def show_routes(session: specexport.Session, console: Console) -> None:
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
    for route in ROUTES:
        pairs = [compare(session, prompt) for prompt in some_prompts(route)]
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


@contextmanager
def calibrated(bundle: Path) -> Iterator[specexport.Session]:
    """A calibrated session. The bundle is not changed: calibration writes into a folder with links to its files."""
    with TemporaryDirectory() as folder:
        links = Path(folder) / "calibrated.bundle"
        kept = shutil.ignore_patterns("calibration")  # a journal is written in place
        shutil.copytree(bundle.resolve(), links, copy_function=os.symlink, ignore=kept)
        with specexport.load(links, policy=False) as session:
            requests = [
                Request(1000 * number + line, route, tuple(session.encode(prompt)), FEWER_TOKENS)
                for number, route in enumerate(ROUTES)
                for line, prompt in enumerate(some_prompts(route, CALIBRATED))
            ]
            calibrate(session, requests, CalibrateOptions(bursts=1), "python examples/demo.py")
        with specexport.load(links) as session:
            yield session


def show_policy(session: specexport.Session, uncalibrated: specexport.Session, console: Console) -> None:
    """Show the speedup of fixed numbers of draft tokens, of the policy, and of an uncalibrated session over plain
    decoding, interleaved on every prompt.
    """
    most = session.max_draft_tokens
    ways: dict[str, dict[str, Any]] = {"plain": dict(speculate=False)}
    ways |= {f"the draft, k = {most}": dict(num_draft_tokens=most, drafter=ALIAS)}
    ways |= {f"lookups, k = {most}": dict(num_draft_tokens=most, drafter=LOOKUP)}
    ways |= {UNCALIBRATED: {}, "policy": {}}
    uncalibrated.generate([0], max_new_tokens=1)  # it measures its costs before the first request
    prompts = [(route, prompt) for route in ROUTES for prompt in some_prompts(route)]
    seconds = {(way, route): 0.0 for way in ways for route in (*ROUTES, "all")}
    names = list(ways)
    times: dict[tuple[str, int], list[float]] = {(way, number): [] for way in names for number in range(len(prompts))}
    found: list[set[tuple[int, ...]]] = [set() for _ in prompts]
    for number, (route, prompt) in list(enumerate(prompts)) * REPEATS:
        for way in names[number % len(names) :] + names[: number % len(names)]:
            options = ways[way] | ({"route": route} if way == "policy" else {})
            asked = uncalibrated if way == UNCALIBRATED else session
            asked.reset()
            generation = asked.generate(prompt, max_new_tokens=NEW_TOKENS, stop_token_ids=(), **options)
            times[way, number].append(generation.statistics.decode_seconds)
            found[number].add(tuple(generation.tokens))
    for (way, number), each in times.items():
        for place in (prompts[number][0], "all"):
            seconds[way, place] += median(each)
    title = f"Speedup over plain decoding on the same {len(prompts)} prompts: fixed numbers, and sessions that adapt"
    table = Table("", *ROUTES, "all", title=title)
    for way in names:
        table.add_row(way, *(f"{seconds['plain', place] / seconds[way, place]:.2f}x" for place in (*ROUTES, "all")))
    console.print(table)
    console.print(f"Same output in every way: {sum(len(one) == 1 for one in found)} of {len(found)} prompts.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    bundle = parser.parse_args().bundle
    check_packages()
    console = Console()
    console.width = max(console.width, 112)
    with specexport.load(bundle, policy=False) as session:
        show_stream(session, console, some_prompts("code")[0])
        show_routes(session, console)
    console.print(
        "Where the draft cannot predict the text, a fixed number of its tokens costs time; lookups in the text may do\n"
        "better. An uncalibrated session learns that as it runs, calibration finds it out beforehand:\n"
    )
    console.print(f"Calibrating on {CALIBRATED.stop - CALIBRATED.start} other prompts per route ...\n")
    with calibrated(bundle) as session, specexport.load(bundle) as uncalibrated:
        show_policy(session, uncalibrated, console)
    console.print("So measure on your own prompts: specexport calibrate demo.bundle --prompts FILE")


if __name__ == "__main__":
    main()
