"""Speculative against plain decoding on the held-out prompts of the demo pair, greedy, interleaved.

    python benchmarks/demo_pair.py demo.bundle [--limit N] [--num-draft-tokens K]

Per route: mean acceptance length, speedup with a 95 % bootstrap interval by prompt, the p10 speedup, the speedup that
the measured costs predict, the host's share of a round, and whether the output is the target's own.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hardware import describe_hardware
from specexport import Session, load
from specexport.bundle import ALIAS
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.proofs.equality import check_equality
from specexport.runtime.state.statistics import Statistics
from specexport.runtime.text.prompt_file import read_prompts

ROUTES = ("code", "prose", "random")
PROMPTS = Path(__file__).parent.parent / "examples/prompts"


@dataclass(frozen=True)
class PromptRuns:
    """One prompt, both ways. Times in seconds after the prefill; both start from an empty cache."""

    plain: Statistics
    speculative: Statistics

    @property
    def speedup(self) -> float:
        return self.speculative.tokens_per_second / self.plain.tokens_per_second


def run_both(session: Session, prompt: list[int], k: int, max_new_tokens: int, plain_first: bool) -> PromptRuns:
    found = {}
    for speculate in (False, True) if plain_first else (True, False):
        session.reset()
        options = dict(speculate=speculate, num_draft_tokens=k, drafter=ALIAS, stop_token_ids=())
        found[speculate] = session.generate(prompt, max_new_tokens=max_new_tokens, **options).statistics
    return PromptRuns(found[False], found[True])


def total_speedup(pairs: list[PromptRuns]) -> float:
    """Plain divided by speculative time of all prompts together; both emitted the same number of tokens."""
    return sum(pair.plain.decode_seconds for pair in pairs) / sum(pair.speculative.decode_seconds for pair in pairs)


def bootstrap(pairs: list[PromptRuns]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    draws = [total_speedup([pairs[i] for i in rng.integers(0, len(pairs), len(pairs))]) for _ in range(1000)]
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def measure_route(session: Session, route: str, k: int, limit: int | None, max_new_tokens: int) -> dict[str, object]:
    prompts = [session.encode(prompt) for prompt in read_prompts(PROMPTS / f"{route}.jsonl")][:limit]
    run_both(session, prompts[0], k, max_new_tokens, True)  # warm-up
    pairs = [run_both(session, prompt, k, max_new_tokens, index % 2 == 0) for index, prompt in enumerate(prompts)]
    context = int(np.mean([len(prompt) for prompt in prompts])) + max_new_tokens // 2
    meter = CostMeter(session, [context])
    meter.measure(8)
    (costs,) = meter.costs().points
    break_even = costs.rounds[k].median / costs.rounds[0].median
    equalities = [check_equality(session, prompt, max_new_tokens) for prompt in prompts]
    speculative = [pair.speculative for pair in pairs]
    rounds, accepted = (sum(getattr(row, name) for row in speculative) for name in ("rounds", "accepted"))
    length = (rounds + accepted) / rounds
    emitted = sum(row.emitted for row in speculative)
    low, high = bootstrap(pairs)
    measured, predicted = total_speedup(pairs), emitted / rounds / break_even
    return {
        "route": route,
        "prompts": len(prompts),
        "num_draft_tokens": k,
        "mean_acceptance_length": length,
        "acceptance_rate": accepted / sum(row.drafted for row in speculative),
        "speedup": measured,
        "speedup_low": low,
        "speedup_high": high,
        "speedup_p10": float(np.percentile([pair.speedup for pair in pairs], 10)),
        "predicted": predicted,
        "measured_over_predicted": measured / predicted,
        "plain_tokens_per_second": emitted / sum(pair.plain.decode_seconds for pair in pairs),
        "host_share": sum(row.host_seconds for row in speculative) / sum(row.decode_seconds for row in speculative),
        "plain_ms": costs.verify[0].median * 1e3,
        "draft_ms": k * costs.draft.median * 1e3,
        "verify_ms": costs.verify[k].median * 1e3,
        "host_ms": costs.host[k].median * 1e3,
        "equal_same_width": sum(entry.same_width for entry in equalities),
        "equal_width_1": sum(entry.first_difference is None for entry in equalities),
        "near_ties": sum(entry.first_difference is not None and entry.near_tie for entry in equalities),
    }


def table(rows: list[dict[str, object]]) -> str:
    """A Markdown table with one column per route."""
    forms = {
        "prompts": ("held-out prompts", "{}"),
        "mean_acceptance_length": ("tokens per round", "{:.2f}"),
        "acceptance_rate": ("accepted / drafted", "{:.0%}"),
        "plain_tokens_per_second": ("plain, tokens/s", "{:.0f}"),
        "speedup": ("**speculative / plain**", "**{:.2f}x**"),
        "speedup_low": ("95 % interval, low", "{:.2f}x"),
        "speedup_high": ("95 % interval, high", "{:.2f}x"),
        "speedup_p10": ("p10 speedup", "{:.2f}x"),
        "predicted": ("predicted a / a*", "{:.2f}x"),
        "measured_over_predicted": ("measured / predicted", "{:.2f}"),
        "host_share": ("time on the host", "{:.1%}"),
        "plain_ms": ("t1, ms", "{:.2f}"),
        "draft_ms": ("k draft passes, ms", "{:.2f}"),
        "verify_ms": ("v(k+1), ms", "{:.2f}"),
        "equal_same_width": ("equal to plain greedy at the same width", "{}"),
        "equal_width_1": ("equal to plain greedy at width 1", "{}"),
        "near_ties": ("equal up to a near tie of two logits", "{}"),
    }
    lines = ["| | " + " | ".join(str(row["route"]) for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    lines += [
        f"| {label} | " + " | ".join(form.format(row[key]) for row in rows) + " |"
        for key, (label, form) in forms.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--limit", type=int, help="prompts per route")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    arguments = parser.parse_args()
    session = load(arguments.bundle)
    k = arguments.num_draft_tokens
    rows = [measure_route(session, route, k, arguments.limit, arguments.max_new_tokens) for route in ROUTES]
    print(f"{describe_hardware()}; k = {k}, {arguments.max_new_tokens} new tokens a prompt, greedy, fp32\n")
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"hardware": describe_hardware(), "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
