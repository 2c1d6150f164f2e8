"""Bundles of one pair in several precisions, interleaved: quality, size, passes, speed, acceptance, effect of widths.

    python benchmarks/precision.py fp32=demo.bundle int8=int8.bundle int4=int4.bundle
        [--route code] [--limit 4] [--max-new-tokens 48]

Ratios are to the first bundle, of medians over the same passes or prompts. `max difference`: of a logit, between a row
that runs alone and the same row among others, in standard deviations of the logits. `floor`: the time to read the
target's weights once, at the bandwidth at which all cores read memory. Perplexity: through the engine, on prompts that
neither model of the demo pair was trained on (routes code and prose).
"""

from __future__ import annotations

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import click
import numpy as np
import specexport
from hardware import describe_hardware
from specexport.runtime.session import Session

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
CONTEXT = 192


@click.command()
@click.argument("bundles", nargs=-1, required=True, metavar="NAME=BUNDLE...")
@click.option(
    "--route", "routes", multiple=True, help="File of examples/prompts to decode; may be repeated. [default: all]"
)
@click.option("--limit", default=4, show_default=True, help="Prompts per file of examples/prompts.")
@click.option("--max-new-tokens", default=48, show_default=True)
@click.option("--passes", default=40, show_default=True, help="Passes per width.")
@click.option("--texts", default=60, show_default=True, help="Prompts per route for the perplexity; 0 for none.")
def main(
    bundles: tuple[str, ...], routes: tuple[str, ...], limit: int, max_new_tokens: int, passes: int, texts: int
) -> None:
    sessions = {
        name: specexport.load(path, policy=False) for name, _, path in (entry.partition("=") for entry in bundles)
    }
    first = next(iter(sessions.values()))
    widths = [width for width in (1, 2, 3, 5, 8) if width <= first.bundle.manifest.contract.widest_step]
    times, bandwidth = time_passes(sessions, widths, passes)
    print(f"{describe_hardware()}; memory is read at {bandwidth / 1e9:.1f} GB/s")
    ratios_of = " | ".join(f"v({width}) / v(1)" for width in widths[1:])
    print(f"\n| | weights, MB | perplexity | t1, ms | t1 / floor | {ratios_of} | max difference |")
    print(f"|---|---|---|---|---|{'---|' * len(widths)}")
    exact = 0.0
    for name, session in sessions.items():
        manifest = session.bundle.manifest
        size = sum(manifest.files[model.weights].bytes for model in manifest.models.values())
        found = perplexity(session, texts)
        exact = exact or found
        loss = f"{found:.3f} ({found / exact - 1:+.2%})" if texts else ""
        floor = manifest.files[manifest.target.weights].bytes / bandwidth
        ratios = [f"{median(times[name][width]) / median(times[name][1]):.2f}" for width in widths[1:]]
        t1 = f"{median(times[name][1]) * 1e3:.2f}"
        over = f"{median(times[name][1]) / floor:.2f}"
        print(
            f"| {name} | {size / 1e6:.1f} | {loss} | {t1} | {over} | {' | '.join(ratios)} "
            f"| {apart(session, widths[-1]):.1e} |"
        )
    compare(sessions, routes, limit, max_new_tokens)


def time_passes(
    sessions: dict[str, Session], widths: list[int], passes: int
) -> tuple[dict[str, dict[int, list[float]]], float]:
    """(seconds by bundle and width, bytes per second at which memory is read, measured in between)."""
    times: dict[str, dict[int, list[float]]] = {name: {width: [] for width in widths} for name in sessions}
    parts = [np.ones(2**26, np.float32) for _ in os.sched_getaffinity(0)]
    rates = []
    for session in sessions.values():
        fill(session)
    for number in range(passes + 1):
        for name, session in sessions.items():
            for width in widths:
                start = perf_counter()
                session.engine.target.step(list(range(5, 5 + width)), CONTEXT)
                if number:
                    times[name][width].append(perf_counter() - start)
        if number % 8 == 0:  # this evicts the first bundle's weights from the CPU's caches
            rates.append(read_bandwidth(parts))
    return times, median(rates)


def fill(session: Session) -> None:
    tokens = [number % session.engine.target.vocab_size for number in range(7, 7 + CONTEXT)]
    chunk = session.bundle.manifest.contract.prompt_chunk
    for start in range(0, CONTEXT, chunk):
        session.engine.target.feed(tokens[start : start + chunk], start)


def read_bandwidth(parts: list[np.ndarray]) -> float:
    """Bytes per second at which memory is read, with one part per core, larger than any cache.

    It waits first, since the engine's threads spin for a while after a pass.
    """
    sleep(0.1)
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(np.sum, [part[:1] for part in parts]))  # starts the threads
        start = perf_counter()
        list(pool.map(np.sum, parts))
        return sum(part.nbytes for part in parts) / (perf_counter() - start)


def perplexity(session: Session, texts: int) -> float:
    target, width = session.engine.target, session.bundle.manifest.contract.widest_step
    surprise, count = 0.0, 0
    for route in ("code", "prose"):
        for line in (PROMPTS / f"{route}.jsonl").read_text(encoding="utf-8").splitlines()[:texts]:
            tokens = session.encode(json.loads(line)["prompt"])[: session.capacity]
            for start in range(0, len(tokens) - 1, width):
                fed = tokens[start : start + width]
                logits = target.step(fed, start).astype(np.float64)
                following = tokens[start + 1 : start + 1 + len(fed)]
                rows = logits[: len(following)]
                top = rows.max(-1)
                total = top + np.log(np.exp(rows - top[:, None]).sum(-1))
                surprise += float((total - rows[np.arange(len(following)), following]).sum())
                count += len(following)
    return math.exp(surprise / count) if count else 0.0


def apart(session: Session, width: int) -> float:
    """The largest difference between rows that run alone and the same rows in one pass."""
    target = session.engine.target
    fill(session)
    tokens = list(range(40, 40 + width))
    alone = np.concatenate([target.step([token], CONTEXT + place).copy() for place, token in enumerate(tokens)])
    together = target.step(tokens, CONTEXT).copy()
    return float(np.abs(alone - together).max() / alone.std())


def compare(sessions: dict[str, Session], routes: tuple[str, ...], limit: int, max_new_tokens: int) -> None:
    files = [path for path in sorted(PROMPTS.glob("*.jsonl")) if not routes or path.stem in routes]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()[:limit]]
    prompts = [row["prompt"] for row in map(json.loads, lines) if "prompt" in row]
    rates: dict[tuple[str, bool], list[float]] = {(name, drafts): [] for name in sessions for drafts in (False, True)}
    lengths: dict[str, list[float]] = {name: [] for name in sessions}
    equal = dict.fromkeys(sessions, 0)
    for prompt in prompts:
        for name, session in sessions.items():
            texts = []
            for drafts in (False, True):
                session.reset()
                made = session.generate(prompt, max_new_tokens=max_new_tokens, stop_token_ids=(), speculate=drafts)
                rates[name, drafts].append(made.statistics.tokens_per_second)
                texts.append(made.tokens)
            lengths[name].append(made.statistics.mean_acceptance_length)
            equal[name] += texts[0] == texts[1]
    base = rates[next(iter(sessions)), False]
    columns = (
        f"plain, tokens/s | speculative | over plain {next(iter(sessions))} (p10 to p90) | tokens per round | same text"
    )
    print(f"\n| {len(prompts)} prompts, {max_new_tokens} tokens | {columns} |")
    print("|---|---|---|---|---|---|")
    for name in sessions:
        ratios = sorted(ours / theirs for ours, theirs in zip(rates[name, True], base, strict=True))
        spread = f"{ratios[len(ratios) // 10]:.2f} to {ratios[-1 - len(ratios) // 10]:.2f}"
        print(
            f"| {name} | {median(rates[name, False]):.1f} | {median(rates[name, True]):.1f} "
            f"| {median(ratios):.2f}x ({spread}) | {np.mean(lengths[name]):.2f} | {equal[name]} |"
        )


if __name__ == "__main__":
    main()
