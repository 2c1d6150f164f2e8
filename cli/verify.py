"""`specexport verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import BUNDLE, DRAFTER, JSON, running


@click.command()
@BUNDLE
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help='JSONL file of {"prompt" or "messages": ...} lines. [default: the tokens of the export\'s proof]',
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Maximum new tokens, unless a prompt's line says otherwise.",
)
@click.option(
    "--trials",
    type=click.IntRange(0),
    default=0,
    help="Sampled generations for L3: hundreds at least; 10000 find small errors. [default: no L3]",
)
@DRAFTER
@running
@JSON
def verify(
    bundle: Path,
    where: dict[str, Any],
    as_json: bool,
    **options: Any,
) -> None:
    """Prove losslessness on this host.

    L0 enumerates the verification rules. Parity compares the graphs with the Hugging Face model. L1 and L2 compare
    speculative with plain greedy output, at the same pass width and at width 1. L3, with --trials, compares sampled
    output, under both verification rules, with the target's exact distribution. --drafter applies to L1, L2 and L3.
    """
    from ..runtime.proofs.verify import render, verify_session
    from .progress import load

    result = verify_session(load(bundle, **where, policy=False), **options)
    click.echo(json.dumps(result.as_dict()) if as_json else render(result))
    if not result.passed:
        raise SystemExit(1)
