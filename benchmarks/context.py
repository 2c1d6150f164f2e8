"""The cost of long prompts for a bundle's target: prefill by chunk size, and passes of one or more rows by context.

    python benchmarks/context.py BUNDLE [--lengths 128,512,1000,1900] [--chunks 64,128,256] [--widths 1,5] [--turns 5]

Chunks take turns on each length, and widths on each context; figures are medians of the turns, ratios of medians. The
bundle's capacity must be at least the longest prompt, and its prompt chunk at least the largest that is tried. Needs a
quiet machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import specexport
from hardware import describe_hardware
from specexport.engines.base import Decoder

SEED = 0


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--lengths", type=numbers, default=[128, 512, 1000, 1900])
    parser.add_argument("--chunks", type=numbers, default=[64, 128, 256])
    parser.add_argument("--widths", type=numbers, default=[1, 5])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--passes", type=int, default=20, help="passes of each width per turn")
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def prefill(target: Decoder, tokens: Sequence[int], chunk: int) -> None:
    for start in range(0, len(tokens), chunk):
        target.feed(tokens[start : start + chunk], start)


def seconds(run: Callable[[], object], times: int = 1) -> float:
    """The median time of `times` runs."""
    found = []
    for _ in range(times):
        start = perf_counter()
        run()
        found.append(perf_counter() - start)
    return median(found)


def main() -> None:
    arguments = parse()
    try:
        opened = specexport.load(arguments.bundle, policy=False, threads=arguments.threads)
    except specexport.SpecExportError as error:
        sys.exit(f"context.py: {error}")
    with opened as session:
        target, contract = session.engine.target, session.bundle.manifest.contract
        widest = max(arguments.widths)
        fits = max(arguments.lengths) + widest <= contract.capacity
        if not fits or max(arguments.chunks) > contract.prompt_chunk or widest > contract.widest_step:
            sys.exit(
                f"context.py: the bundle holds {contract.capacity} tokens in chunks of {contract.prompt_chunk}, and "
                f"steps of {contract.widest_step}; ask for less, or build with a larger --max-seq-len, "
                "--prompt-chunk or --max-draft-tokens"
            )
        tokens = np.random.default_rng(SEED).integers(0, target.vocab_size, contract.capacity).tolist()
        filling: dict[tuple[int, int], list[float]] = {}
        passing: dict[tuple[int, int], list[float]] = {}
        for turn in range(arguments.turns + 1):  # the first one warms up
            for length in arguments.lengths:
                for chunk in arguments.chunks:
                    took = seconds(lambda: prefill(target, tokens[:length], chunk))  # noqa: B023
                    filling.setdefault((length, chunk), []).extend([took] * (turn > 0))
                for width in arguments.widths:
                    step = tokens[length : length + width]
                    took = seconds(lambda: target.step(step, length), arguments.passes)  # noqa: B023
                    passing.setdefault((length, width), []).extend([took] * (turn > 0))
    print(describe_hardware())
    print(f"{arguments.bundle}, {arguments.turns} turns, {arguments.passes} passes of each width in a turn\n")
    lengths = arguments.lengths
    print("| tokens of context | " + " | ".join(map(str, lengths)) + " |")
    print("|---" * (len(lengths) + 1) + "|")
    for chunk in arguments.chunks:
        cells = (f"{median(filling[length, chunk]):.2f}" for length in lengths)
        print(f"| prefill in chunks of {chunk}, s | " + " | ".join(cells) + " |")
    for width in arguments.widths:
        times = {length: 1e3 * median(passing[length, width]) for length in lengths}
        cells = (f"{times[length]:.2f} ({times[length] / times[lengths[0]]:.2f})" for length in lengths)
        print(f"| pass of {width} rows, ms (against {lengths[0]}) | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
