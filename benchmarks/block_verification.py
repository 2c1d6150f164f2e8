"""Block against token verification: tokens per round when sampling, with the same prompts and seeds both ways.

    python benchmarks/block_verification.py demo.bundle [--limit N] [--temperature 1.0]

Nothing is timed. The interval is a paired bootstrap by prompt.
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


def counts(session: Session, prompt: list[int], seeds: int, params: SamplingParameters) -> dict[str, tuple[int, int]]:
    """verification -> `(tokens of all rounds, rounds)`, without the last rounds, which the limit makes shorter."""
    found = {}
    for verification in ("block", "token"):
        tokens = rounds = 0
        for seed in range(seeds):
            drafted = 0
            for chunk in session.stream(prompt, params, seed=seed, verification=verification):
                if chunk.statistics.drafted - drafted == params.num_draft_tokens:
                    tokens, rounds = tokens + len(chunk.tokens), rounds + 1
                drafted = chunk.statistics.drafted
        found[verification] = (tokens, rounds)
    return found


def length(pairs: list[dict[str, tuple[int, int]]], verification: str) -> float:
    tokens, rounds = (sum(pair[verification][index] for pair in pairs) for index in (0, 1))
    return tokens / rounds


def gain(pairs: list[dict[str, tuple[int, int]]]) -> float:
    return length(pairs, "block") / length(pairs, "token") - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--limit", type=int, default=80, help="prompts per route")
    parser.add_argument("--seeds", type=int, default=4, help="generations per prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--num-draft-tokens", type=int)
    arguments = parser.parse_args()
    session = load(arguments.bundle)
    k = arguments.num_draft_tokens or session.max_draft_tokens
    params = SamplingParameters(
        temperature=arguments.temperature,
        max_new_tokens=arguments.max_new_tokens,
        num_draft_tokens=k,
        stop_token_ids=(),
    )
    print(
        f"{describe_hardware()}; temperature {arguments.temperature}, k = {k}, "
        f"{arguments.seeds} x {arguments.max_new_tokens} tokens a prompt\n"
    )
    print("| route | prompts | token | block | gain | 95 % interval |\n|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for route in ("code", "prose"):
        prompts = [session.encode(prompt) for prompt in read_prompts(PROMPTS / f"{route}.jsonl")][: arguments.limit]
        pairs = [counts(session, prompt, arguments.seeds, params) for prompt in prompts]
        draws = [gain([pairs[i] for i in rng.integers(0, len(pairs), len(pairs))]) for _ in range(1000)]
        low, high = np.percentile(draws, [2.5, 97.5])
        print(
            f"| {route} | {len(pairs)} | {length(pairs, 'token'):.3f} | {length(pairs, 'block'):.3f} "
            f"| {gain(pairs):+.1%} | {low:+.1%} to {high:+.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
