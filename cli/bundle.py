"""Commands on a finished bundle: `specexport inspect`, `compile` and `push`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..engines.catalogue import LIBRARIES
from .options import BUNDLE, FILE, JSON, compile_options, compiling, running


@click.command()
@BUNDLE
@JSON
def inspect(bundle: Path, as_json: bool) -> None:
    """Show what a bundle contains.

    Models, drafters, memory, proofs, policy and costs. --json adds the files with sizes and digests.
    """
    from ..bundle import Bundle
    from ..runtime.describe import describe, render
    from ..runtime.hub import local_bundle

    description = describe(Bundle.open(local_bundle(bundle)))
    click.echo(json.dumps(description.as_dict(), indent=1) if as_json else render(description))


@click.command()
@BUNDLE
@click.option(
    "--prompts",
    type=FILE,
    help='JSONL file of {"prompt" or "messages": ...} lines. [default: the tokens of the build\'s check]',
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=64,
    help="Maximum new tokens, unless a prompt's line says otherwise.",
)
@click.option(
    "--trials",
    type=click.IntRange(0),
    default=0,
    help="Sampled generations for L3: hundreds at least, 10000 to find small errors; 0: no L3.",
)
@click.option("--drafter", help="Drafter of L1 to L3, as for bench. [default: each draft in turn; L3: the first]")
@running
@JSON
def verify(bundle: Path, where: dict[str, Any], as_json: bool, **options: Any) -> None:
    """Check on this host that a bundle is lossless.

    L0 enumerates the verification rules. Parity compares the graphs with the Hugging Face model. L1 and L2 compare
    speculative with plain greedy output, at the same pass width and at width 1. L3, with --trials, compares sampled
    output, under block and token verification, with the target's exact distribution. It may take minutes.
    """
    from ..editing.display import BuildDisplay
    from ..editing.progress import Silent
    from ..runtime.proofs.verify import render, verify_session
    from .progress import load

    session = load(bundle, **where, policy=False)
    with BuildDisplay() as display:
        shown = display if display.on_terminal else Silent()
        result = verify_session(session, **options, stage=shown.stage)
    click.echo(json.dumps(result.as_dict()) if as_json else render(result))
    if not result.passed:
        raise SystemExit(1)


@click.command("compile")
@BUNDLE
@click.option(
    "--engine", type=click.Choice(LIBRARIES), required=True, help="tensorrt compiles for this host's GPU alone."
)
@compiling
def compile_plans(bundle: Path, engine: str, **options: Any) -> None:
    """Compile a bundle's graphs for TensorRT.

    Run it on the device that will run the bundle; for tensorrt-rtx, on any host. Replaces the bundle's plans for that
    engine. Needs neither torch nor the checkpoints.
    """
    from ..bundle import Bundle
    from ..editing.display import BuildDisplay

    Bundle.open(bundle, check_digests=False, without_plans=engine)  # what is no bundle is refused without a stage
    with BuildDisplay() as display:
        from ..editing.compile import compile_bundle

        chosen = compile_options(options)
        with display.stage("check the bundle", 1):
            opened = Bundle.open(bundle, without_plans=engine)
        manifest = compile_bundle(opened, engine, chosen, display).manifest
    plans = [plan for plan in manifest.plans if plan.engine == engine]
    size = sum(manifest.files[plan.file].bytes for plan in plans)
    click.echo(f"{len(plans)} plans by {engine} {plans[0].version}, {size / 1e6:.1f} MB", err=True)
    click.echo(str(bundle))


@click.command()
@BUNDLE
@click.argument("repository", metavar="ORG/NAME")
@click.option("--private", is_flag=True, help="Make a new repository private.")
def push(bundle: Path, repository: str, private: bool) -> None:
    """Upload a bundle to the Hugging Face hub.

    specexport.load and the commands that run or inspect a bundle then take ORG/NAME instead of a folder. Calibration
    results are not uploaded. Log in first: hf auth login.
    """
    from ..bundle import Bundle
    from ..editing.push import push as upload

    click.echo(upload(Bundle.open(bundle), repository, private))
