"""What a prompt and a pass cost by the tokens of context before them, of bundles in turns.

    python benchmarks/contexts.py NAME=BUNDLE... [--contexts 128,1000,1900] [--threads 2]

Prompts are fresh: nothing of them is in a cache. Ratios are of medians, to the first bundle and to the first context.
"""

from __future__ import annotations

from statistics import median, quantiles
from time import perf_counter

import click
import numpy as np
import specexport
from hardware import describe_hardware
from specexport.runtime.session import Session

WIDTHS = (1, 5)


def read_prompt(session: Session, tokens: list[int]) -> float:
    """Seconds; the last token's logits are there then."""
    target, chunk = session.engine.target, session.bundle.manifest.contract.prompt_chunk
    start = perf_counter()
    for place in range(0, len(tokens), chunk):
        target.feed(tokens[place : place + chunk], place)
    return perf_counter() - start


def run_pass(session: Session, tokens: list[int], position: int) -> float:
    start = perf_counter()
    session.engine.target.step(tokens, position)
    return perf_counter() - start


@click.command()
@click.argument("bundles", nargs=-1, required=True, metavar="NAME=BUNDLE...")
@click.option("--contexts", default="128,1000,1900", show_default=True)
@click.option("--threads", default=0, help="0 for one per core.")
@click.option("--passes", type=click.IntRange(2), default=30, show_default=True, help="Passes per width and context.")
@click.option("--prompts", type=click.IntRange(2), default=4, show_default=True, help="Prompts per length.")
def main(bundles: tuple[str, ...], contexts: str, threads: int, passes: int, prompts: int) -> None:
    sessions = {
        name: specexport.load(path, policy=False, threads=threads)
        for name, _, path in (entry.partition("=") for entry in bundles)
    }
    lengths = [int(length) for length in contexts.split(",")]
    vocab = min(session.engine.target.vocab_size for session in sessions.values())
    random = np.random.default_rng(0)
    times: dict[tuple[str, int, int], list[float]] = {}
    for length in lengths:
        for number in range(prompts + 1):  # the first warms up
            tokens = random.integers(3, vocab, length).tolist()
            for name, session in sessions.items():
                seconds = read_prompt(session, tokens)
                times.setdefault((name, length, 0), []).extend([seconds] if number else [])
        for number in range(passes + 1):
            for width in WIDTHS:
                tokens = random.integers(3, vocab, width).tolist()
                for name, session in sessions.items():
                    seconds = run_pass(session, tokens, length)
                    times.setdefault((name, length, width), []).extend([seconds] if number else [])
    print(describe_hardware())
    print(f"\n| | {' | '.join(f'{length} tokens' for length in lengths)} |")
    print(f"|---|{'---|' * len(lengths)}")
    base = next(iter(sessions))
    for kind in (0, *WIDTHS):
        called = f"{kind} row{'s' * (kind > 1)}" if kind else "prompt"
        for name in sessions:
            cells = [_cell(times, name, base, kind, length, lengths[0]) for length in lengths]
            print(f"| {name}, {called}, ms | {' | '.join(cells)} |")


def _cell(
    times: dict[tuple[str, int, int], list[float]], name: str, base: str, kind: int, length: int, first: int
) -> str:
    own = times[name, length, kind]
    low, *_, high = quantiles(own, n=10)
    over = median(own) / median(times[base, length, kind])
    longer = f", {median(own) / median(times[name, first, kind]):.2f} of {first}" if kind and length != first else ""
    return f"{median(own) * 1e3:.2f} ({low * 1e3:.2f} to {high * 1e3:.2f}; {over:.2f} of {base}{longer})"


if __name__ == "__main__":
    main()
