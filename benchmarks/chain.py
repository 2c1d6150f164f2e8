"""Chains: what guesses for the draft model save, by counted passes at given costs.

    python benchmarks/chain.py BUNDLE [--drafters ngram:model suffix:model] [--temperature 0] [--limit N]

Every prompt is decoded with the draft alone and with each of the drafters, with k draft tokens from 1 to the bundle's
maximum. The tokens are the same; rounds, passes of the draft and their rows are counted. The table gives their cost on
a few hosts, each way with its best k: d and v(5) are in plain rounds, and an additional row of the draft's pass costs
--row of a pass. Nothing is timed. Intervals are 95 %, a paired bootstrap by prompt. A pass of a smaller model costs
--small of one of the draft's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hardware import describe_hardware
from specexport import Session, load
from specexport.engines.base import Decoder, Logits
from specexport.runtime.drafting.names import model_of, runnable_drafter
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
HOSTS = ((0.1, 1.4), (0.3, 1.4), (0.15, 1.05), (0.12, 1.0), (0.3, 1.0))  # d and v(5)


@dataclass
class Run:
    tokens: int
    rounds: int
    passes: int
    rows: int
    guess_passes: int


class Counted:
    """A draft whose steps are counted. Everything else is forwarded to the decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.rows = decoder, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._decoder, name)

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        self.rows += len(tokens)
        return self._decoder.step(tokens, position)


def decode(session: Session, prompt: list[int], params: SamplingParameters, counted: Counted) -> Run:
    session.reset()
    before = counted.rows
    row = session.generate(prompt, params).statistics
    return Run(row.emitted, row.rounds, row.draft_passes, counted.rows - before, row.guess_passes)


def speed(found: list[Run], k: int, host: tuple[float, float], row: float, small: float) -> float:
    """Tokens per time of a plain round."""
    d, v5 = host
    tokens, rounds, passes, rows, guesses = (
        sum(getattr(run, name) for run in found) for name in ("tokens", "rounds", "passes", "rows", "guess_passes")
    )
    drafting = d * (passes + row * (rows - passes) + small * guesses)
    return float(tokens / (drafting + rounds * (1 + (v5 - 1) * k / 4)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--drafters", nargs="+", default=["ngram:model", "suffix:model"])
    parser.add_argument("--routes", nargs="+", default=["code", "prose"])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=10, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--row", type=float, default=0.05)
    parser.add_argument("--small", type=float, default=0.2)
    arguments = parser.parse_args()
    session = load(arguments.bundle)
    alone = model_of(runnable_drafter(arguments.drafters[0], session.bundle.manifest))
    assert alone is not None
    session.drafts.use(alone)
    cached = session.drafts.context.drafts[alone]
    cached.decoder = counted = Counted(cached.decoder)  # type: ignore[assignment]
    prompts = [
        session.encode(prompt)
        for route in arguments.routes
        for prompt in read_prompts(PROMPTS / f"{route}.jsonl")[: arguments.limit]
    ]
    print(f"{describe_hardware()}; temperature {arguments.temperature}, {len(prompts)} prompts\n")
    print("| drafter | k | tokens a round | passes of the draft a round | rows of them |\n|---|---|---|---|---|")
    runs: dict[str, dict[int, list[Run]]] = {}
    for drafter in (alone, *arguments.drafters):
        runs[drafter] = {}
        for k in range(1, session.max_draft_tokens + 1):
            params = SamplingParameters(
                temperature=arguments.temperature,
                max_new_tokens=arguments.max_new_tokens,
                num_draft_tokens=k,
                drafter=drafter,
                num_leaves=0,
                seed=0,
                stop_token_ids=(),
            )
            runs[drafter][k] = found = [decode(session, prompt, params, counted) for prompt in prompts]
            rounds, passes = sum(run.rounds for run in found), sum(run.passes for run in found)
            print(
                f"| {drafter} | {k} | {sum(run.tokens for run in found) / rounds:.2f} | {passes / rounds:.2f} "
                f"| {sum(run.rows for run in found) / rounds:.2f} |",
                flush=True,
            )
    print(f"\n| d | v(5) | {alone}, k | " + " | ".join(arguments.drafters) + " |")
    print("|---|---|---|" + "---|" * len(arguments.drafters))
    rng = np.random.default_rng(0)
    for host in HOSTS:
        best: dict[str, int] = {}
        for drafter, by_k in runs.items():
            speeds = {k: speed(found, k, host, arguments.row, arguments.small) for k, found in by_k.items()}
            best[drafter] = max(speeds, key=speeds.__getitem__)

        def of(drafter: str, at: Sequence[int], host: tuple[float, float] = host, best: dict[str, int] = best) -> float:
            k = best[drafter]
            return speed([runs[drafter][k][place] for place in at], k, host, arguments.row, arguments.small)

        everyone = range(len(prompts))
        cells = [f"{of(alone, everyone):.2f}, {best[alone]}"]
        for drafter in arguments.drafters:
            picks = [rng.integers(0, len(prompts), len(prompts)).tolist() for _ in range(1000)]
            low, high = np.percentile([of(drafter, at) / of(alone, at) - 1 for at in picks], [2.5, 97.5])
            gain = of(drafter, everyone) / of(alone, everyone) - 1
            cells.append(f"{gain:+.1%} ({low:+.1%} to {high:+.1%}), k {best[drafter]}")
        print(f"| {host[0]} | {host[1]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
