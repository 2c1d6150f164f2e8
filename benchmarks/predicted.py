"""Predicted against measured speedup by context length, with costs measured on short texts only, and on long ones too.

    python benchmarks/predicted.py BUNDLE [--lengths 100 500 900] [--numbers 2 4] [--limit 8] [--threads 1]

Costs are measured at 16 and 160 tokens and at the capacity, at times between the prompts; prompts of each length are
parts of the held-out ones. Each is decoded plainly and with every k, interleaved. The prediction is for the rounds that
ran (`calibration/bench/predict.py`), so it differs only in the costs: those of the first two contexts, the second of
which is used for all longer texts, or those of all three, with linear interpolation. Intervals are 95 %, by prompt.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import chain
from pathlib import Path

from hardware import describe_hardware
from pays import text
from specexport import Session, load
from specexport.calibration.bench.interleaved import run_both_ways
from specexport.calibration.bench.predict import predict_by
from specexport.calibration.bench.results import BenchOptions, PairedRun
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.statistics.intervals import ratio_interval
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.text.prompt_file import read_prompts

PROMPTS = Path(__file__).parent.parent / "examples/prompts/code.jsonl"
SHORT = [16, 160]


def requests(session: Session, lengths: list[int], limit: int, tokens: int) -> list[Request]:
    ids = list(chain.from_iterable(session.encode(prompt) for prompt in read_prompts(PROMPTS)))
    found = []
    for number in range(limit):
        for length in lengths:
            prompt, ids = ids[:length], ids[length:] + ids[:length]
            found.append(Request(number, str(length), tuple(prompt), tokens))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=[100, 500, 900])
    parser.add_argument("--numbers", nargs="+", type=int, default=[2, 4], help="draft tokens per round")
    parser.add_argument("--limit", type=int, default=8, help="prompts of each length")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="use 1 if other work shares the cores")
    arguments = parser.parse_args()
    pairs: list[PairedRun] = []
    with load(arguments.bundle, policy=False, threads=arguments.threads) as session:
        meter = CostMeter(session, [*SHORT, session.capacity])
        for number, request in enumerate(
            requests(session, arguments.lengths, arguments.limit, arguments.max_new_tokens)
        ):
            if number % len(arguments.lengths) == 0:
                meter.measure(1)
            for k in arguments.numbers:
                options, first = BenchOptions(num_draft_tokens=k), (number + k // 2) % 2 == 0
                plain, speculative, outputs = run_both_ways(session, request, options, first)
                pairs.append(
                    PairedRun(
                        number, 1, f"{request.route}/{k}", 0, len(request.tokens), first, plain, speculative, outputs
                    )
                )
        costs = meter.costs()
    print(f"{describe_hardware()}\n")
    for point in costs.points:
        rounds = " ".join(f"{time.median / point.rounds[0].median:.2f}" for time in point.rounds)
        print(f"{point.context} tokens: t1 {1e3 * point.rounds[0].median:.2f} ms, rounds by k in plain rounds {rounds}")
    print("\n| prompt | k | measured | by short texts | apart | by all | apart |\n" + "|---" * 7 + "|")
    shorter, first = replace(costs, points=costs.points[: len(SHORT)]), session.drafts.first
    predicts = [predict_by({first: known}, first, lambda _: first) for known in (shorter, costs)]
    for route in dict.fromkeys(pair.route for pair in pairs):
        found = [pair for pair in pairs if pair.route == route]
        measured = ratio_interval(
            [pair.plain_seconds for pair in found], [pair.speculative.decode_seconds for pair in found]
        )
        by = [predict(route, found) or 0.0 for predict in predicts]
        cells = " | ".join(f"{value:.3f} | {value / measured.value - 1:+.1%}" for value in by)
        print(f"| {' | '.join(route.split('/'))} | {text(measured)} | {cells} |")


if __name__ == "__main__":
    main()
