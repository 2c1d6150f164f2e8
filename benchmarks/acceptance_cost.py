"""What a round's acceptance costs the host: k draft tokens proposed and verified over a large vocabulary.

    python benchmarks/acceptance_cost.py [--vocab 128256] [--num-draft-tokens 4]

Drafts equal the target here, so every draft token is accepted and every row is evaluated: the most expensive round.
numpy works on one core.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
from hardware import describe_hardware
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import Rule, make_rule

LIMITS = {"greedy": 60.0, "top-k 50, top-p 0.95, block": 1000.0, "top-k 50, top-p 0.95, token": 1000.0}
CASES = {
    "greedy": SamplingParameters(),
    "greedy, repetition penalty 1.1": SamplingParameters(repetition_penalty=1.1),
    "top-k 50, top-p 0.95, block": SamplingParameters(temperature=1.0, top_k=50, top_p=0.95, seed=0),
    "top-k 50, top-p 0.95, token": SamplingParameters(
        temperature=1.0, top_k=50, top_p=0.95, seed=0, verification="token"
    ),
    "top-p 0.95, block": SamplingParameters(temperature=1.0, top_p=0.95, seed=0),
    "min-p 0.05, block": SamplingParameters(temperature=1.0, min_p=0.05, seed=0),
    "no truncation, block": SamplingParameters(temperature=1.0, seed=0),
    "no truncation, token": SamplingParameters(temperature=1.0, seed=0, verification="token"),
}


def logits_like_a_models(rows: int, vocab: int) -> np.ndarray:
    """Normally distributed logits with a few much larger ones: top-p 0.95 keeps a few dozen tokens."""
    rng = np.random.default_rng(0)
    logits = 2.5 * rng.normal(size=(rows, vocab))
    for row in logits:
        row[rng.integers(0, vocab, 40)] += 12
    return logits.astype(np.float32)


def measure(rule: Rule, logits: np.ndarray, repeats: int = 200) -> tuple[list[float], list[float]]:
    """Microseconds of all k proposals, and of the acceptance, round by round."""
    k = len(logits) - 1
    proposals, acceptances = [], []
    for _ in range(repeats):
        start = perf_counter()
        draft_tokens = [rule.propose(row) for row in logits[:k]]
        middle = perf_counter()
        num_accepted, _ = rule.accept(logits, draft_tokens)
        acceptances.append((perf_counter() - middle) * 1e6)
        proposals.append((middle - start) * 1e6)
        assert num_accepted == k
    return proposals, acceptances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    arguments = parser.parse_args()
    logits = logits_like_a_models(arguments.num_draft_tokens + 1, arguments.vocab)
    print(f"{describe_hardware()}; vocabulary {arguments.vocab}, k = {arguments.num_draft_tokens}, us a round\n")
    print("| | accept, median | p90 | limit | propose k, median |\n|---|---|---|---|---|")
    for name, parameters in CASES.items():
        proposals, acceptances = measure(make_rule(parameters, arguments.vocab, [1, 2, 3], ()), logits)
        row = (np.median(acceptances), np.percentile(acceptances, 90), LIMITS.get(name, ""), np.median(proposals))
        print(f"| {name} | {row[0]:.0f} | {row[1]:.0f} | {row[2]} | {row[3]:.0f} |")


if __name__ == "__main__":
    main()
