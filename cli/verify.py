"""`specexport verify`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .options import BUNDLE, DRAFTER, ENGINE, JSON, THREADS


@click.command()
@BUNDLE
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help='JSONL with {"prompt": ...} lines. [default: the proof\'s own tokens]',
)
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--trials",
    type=click.IntRange(0),
    default=0,
    help="Also sample so often (L3): hundreds at least, 10000 find small errors.",
)
@DRAFTER
@ENGINE
@THREADS
@JSON
def verify(
    bundle: Path,
    prompts: Path | None,
    max_new_tokens: int,
    trials: int,
    drafter: str | None,
    engine: str | None,
    threads: int,
    as_json: bool,
) -> None:
    """Prove on this host that the output is the target's own.

    L0: the verification rules, enumerated. Parity: the graphs against the Hugging Face model. L1 and L2: speculative
    against plain greedy output, at the same width and at width 1. L3, with --trials: sampled output, by both
    verifications, against the target's exact distribution. --drafter is used for L1, L2 and L3.
    """
    from ..runtime.proofs.verify import render, verify_session
    from ..runtime.session import load

    result = verify_session(load(bundle, engine, threads), prompts, max_new_tokens, trials, drafter)
    click.echo(json.dumps(result.as_dict()) if as_json else render(result))
    if not result.passed:
        raise SystemExit(1)
