"""Drafters against plain decoding, greedy, interleaved.

    python benchmarks/lookup.py BUNDLE [--routes copy code] [--drafters ngram ngram+model] [--limit N]

Every prompt is decoded plainly and with each drafter, interleaved, from an empty cache. Intervals are a bootstrap by
prompt. `over the first` compares with the first drafter.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from hardware import describe_hardware
from numpy.typing import NDArray
from specexport import Session, load
from specexport.runtime.drafting.names import all_drafters
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.state.statistics import Statistics
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
PLAIN = "plain"
Array = NDArray[np.float64]


def run(
    session: Session, prompt: list[int], drafter: str, params: SamplingParameters
) -> tuple[Statistics, tuple[int, ...]]:
    session.reset()
    way = replace(params, speculate=False) if drafter == PLAIN else replace(params, drafter=drafter)
    generation = session.generate(prompt, way)
    return generation.statistics, generation.tokens


def measure_route(
    session: Session, route: str, drafters: list[str], limit: int | None, params: SamplingParameters
) -> None:
    prompts = [session.encode(prompt) for prompt in read_prompts(PROMPTS / f"{route}.jsonl")][:limit]
    ways = [PLAIN, *drafters]
    for way in ways:
        run(session, prompts[0], way, params)  # warm-up
    seconds = np.zeros((len(ways), len(prompts)))
    rounds, drafted, accepted, emitted, equal = (np.zeros((len(ways), len(prompts)), int) for _ in range(5))
    for column, prompt in enumerate(prompts):
        tokens = {}
        for row in np.roll(range(len(ways)), column):
            statistics, tokens[row] = run(session, prompt, ways[row], params)
            seconds[row, column] = statistics.decode_seconds
            rounds[row, column], drafted[row, column] = statistics.rounds, statistics.drafted
            accepted[row, column], emitted[row, column] = statistics.accepted, statistics.emitted
        equal[:, column] = [tokens[row] == tokens[0] for row in range(len(ways))]
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(prompts), (1000, len(prompts)))
    for row, way in enumerate(ways[1:], start=1):
        speedup, low, high = _ratio(seconds[0], seconds[row], picks)
        first = "{:.3f} ({:.3f} to {:.3f})".format(*_ratio(seconds[1], seconds[row], picks)) if row > 1 else ""
        print(
            f"| {route} | {way} | {emitted[row].sum() / rounds[row].sum():.2f} "
            f"| {drafted[row].sum() / rounds[row].sum():.2f} | {accepted[row].sum() / max(1, drafted[row].sum()):.0%} "
            f"| **{speedup:.2f}x** | {low:.2f} to {high:.2f} | {np.percentile(seconds[0] / seconds[row], 10):.2f}x "
            f"| {first} | {equal[row].sum()} of {len(prompts)} |",
            flush=True,
        )


def _ratio(base: Array, seconds: Array, picks: NDArray[np.int64]) -> tuple[float, float, float]:
    """How many times as fast, with a 95 % interval."""
    low, high = np.percentile(base[picks].sum(1) / seconds[picks].sum(1), [2.5, 97.5])
    return base.sum() / seconds.sum(), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["copy"])
    parser.add_argument("--drafters", nargs="+", help="default: all of the first draft")
    parser.add_argument("--limit", type=int, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--num-draft-tokens", type=int, help="default: the bundle's maximum")
    arguments = parser.parse_args()
    session = load(arguments.bundle)
    drafters = arguments.drafters or all_drafters(session.drafts.names[:1])
    k = arguments.num_draft_tokens or session.max_draft_tokens
    params = SamplingParameters(max_new_tokens=arguments.max_new_tokens, num_draft_tokens=k, stop_token_ids=())
    print(f"{describe_hardware()}; k = {k}, {arguments.max_new_tokens} new tokens a prompt, greedy\n")
    heads = (
        "route",
        "drafter",
        "tokens per round",
        "drafted per round",
        "accepted",
        "speedup",
        "95 % interval",
        "p10 speedup",
        "over the first",
        "same tokens",
    )
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for route in arguments.routes:
        measure_route(session, route, drafters, arguments.limit, params)


if __name__ == "__main__":
    main()
