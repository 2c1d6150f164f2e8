"""Several candidates per position against one draft with leaves: tokens per round when sampling.

    python benchmarks/candidates.py BUNDLE [--rows 0 4 8] [--num-draft-tokens 4] [--temperature 1.0] [--limit N]

BUNDLE must be built with --tree-rows. Every way decodes the same prompts with the same seeds, with --rows additional
rows in every round. Nothing is timed. Rounds that draft less because of the limit do not count. Intervals are 95 %, a
paired bootstrap by prompt, against block verification with the same number of leaves.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from hardware import describe_hardware
from specexport import Session, load
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
WAYS = ("block", "token", "spectr")
Counts = tuple[int, int, int]  # tokens, rounds, tokens gained by an additional row


def count(session: Session, prompt: list[int], seeds: int, params: SamplingParameters) -> Counts:
    tokens = rounds = caught = 0
    for seed in range(seeds):
        drafted = before = 0
        for chunk in session.stream(prompt, params, seed=seed):
            if chunk.statistics.drafted - drafted == params.num_draft_tokens:
                tokens, rounds = tokens + len(chunk.tokens), rounds + 1
                caught += chunk.statistics.caught - before
            drafted, before = chunk.statistics.drafted, chunk.statistics.caught
    return tokens, rounds, caught


def length(found: list[Counts]) -> float:
    return sum(tokens for tokens, _, _ in found) / sum(rounds for _, rounds, _ in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs="+", default=["code", "prose"])
    parser.add_argument("--rows", nargs="+", type=int, default=[0, 4, 8])
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--limit", type=int, default=10, help="prompts per route")
    parser.add_argument("--seeds", type=int, default=2, help="generations per prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    session = load(arguments.bundle)
    print(
        f"{describe_hardware()}; temperature {arguments.temperature}, k = {arguments.num_draft_tokens}, "
        f"{arguments.seeds} x {arguments.max_new_tokens} tokens a prompt\n"
    )
    prompts = [
        session.encode(prompt)
        for route in arguments.routes
        for prompt in read_prompts(PROMPTS / f"{route}.jsonl")[: arguments.limit]
    ]
    print(f"{len(prompts)} prompts\n\n| rows | verification | tokens a round | caught a round | against block |")
    print("|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for rows in arguments.rows:
        found: dict[str, list[Counts]] = {}
        for way in WAYS:
            params = SamplingParameters(
                temperature=arguments.temperature,
                max_new_tokens=arguments.max_new_tokens,
                num_draft_tokens=arguments.num_draft_tokens,
                num_leaves=rows,
                verification=way,
                stop_token_ids=(),
            )
            found[way] = [count(session, prompt, arguments.seeds, params) for prompt in prompts]
            picks = [rng.integers(0, len(prompts), len(prompts)) for _ in range(1000)]
            gains = [length([found[way][i] for i in at]) / length([found["block"][i] for i in at]) - 1 for at in picks]
            low, high = np.percentile(gains, [2.5, 97.5])
            gain = length(found[way]) / length(found["block"]) - 1
            against = "" if way == "block" else f"{gain:+.1%} ({low:+.1%} to {high:+.1%})"
            caught = sum(entry[2] for entry in found[way]) / sum(entry[1] for entry in found[way])
            print(f"| {rows} | {way} | {length(found[way]):.3f} | {caught:.3f} | {against} |", flush=True)


if __name__ == "__main__":
    main()
