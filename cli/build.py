"""`specexport build`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from .doctor import lacking
from .options import CACHE, MIN_OVERLAP, compile_options, compiling
from .progress import time_lines

if TYPE_CHECKING:
    from ..bundle import Bundle


@click.command()
@click.option(
    "--target",
    required=True,
    help="Target model: a checkpoint folder, a GGUF file, or either on the hub (id, or id:file.gguf).",
)
@click.option(
    "--draft",
    "drafts",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="Smaller draft model, given as the target is; repeatable, the first is the default; lookup for none. "
    "[default: none, drafts come from prompt lookup]",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Bundle folder to create.")
@MIN_OVERLAP
@click.option(
    "--max-seq-len",
    type=int,
    help="Maximum sequence length in tokens, prompt included. [default: the models' maximum, at most 4096]",
)
@click.option(
    "--max-draft-tokens", type=int, default=4, show_default=True, help="Maximum draft tokens per round, 1 to 32."
)
@click.option(
    "--tree-rows",
    type=int,
    default=0,
    show_default=True,
    help="Maximum leaves per round, alternatives to draft tokens; fp32 and fp16 on onnxruntime.",
)
@click.option(
    "--prompt-chunk",
    type=int,
    help="Prompt tokens per pass. [default: 256; 64 for GPU engines; less for mixtures of experts]",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    help="Weight precision: fp32, fp16, bf16, int8, int4, fp8, or auto for the fastest on this host.",
)
@click.option(
    "--draft-precision",
    help="Weight precision of the draft. [default: as --precision]",
)
@click.option(
    "--max-divergence",
    type=float,
    help="auto: maximum mean KL divergence of the quantized target from the exact one, in nats. [default: 0.02]",
)
@click.option(
    "--calibration-prompts",
    "calibration_texts",
    type=click.Path(path_type=Path),
    help="int8, int4, fp8, auto: calibration data, JSONL of prompts, at least 512 tokens. [default: a built-in set]",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    default=["onnxruntime"],
    show_default=True,
    help="Engine to build for; repeatable.",
)
@click.option(
    "--tensorrt-version",
    metavar="X.Y",
    help="TensorRT version on the device that will run the bundle. [default: this host's]",
)
@compiling
@click.option("--force", is_flag=True, help="Overwrite an existing bundle.")
@CACHE
def build(target: str, drafts: tuple[str, ...], output: Path, engines: tuple[str, ...], **options: Any) -> None:
    """Build a proven bundle of target and draft.

    Exports both models, checks the graphs against Hugging Face, and compiles them where an engine needs it. Without
    --draft, the bundle drafts by prompt lookup.
    """
    start = perf_counter()
    if reasons := lacking():
        raise click.ClickException("; ".join(reasons))
    from ..bundle.auto_precision import read_precision, table_lines
    from ..bundle.output import check_free
    from ..editing.display import BuildDisplay
    from ..editing.progress import Silent, Timed
    from ..exporter.checkpoints.source import find_local
    from ..exporter.options import BuildOptions, parse_drafts
    from ..runtime.provenance import command_line

    # Before the display and the slow imports, so that a wrong option is refused at once.
    plans = compile_options(options)
    named = parse_drafts(drafts)
    engines = tuple(dict.fromkeys(engines))
    chosen = BuildOptions(engines=engines, compiling=plans, **options)
    chosen.check(named, str(output))
    check_free(output, chosen.force)
    for source in (target, *(one.source for one in named)):
        find_local(source)
    timed = Timed(Silent())  # a package that cannot be imported is one line, with no stage before it
    with BuildDisplay() as display:
        with timed.stage("import packages", 1):
            from ..exporter.build import build as run

        report = run(target, named, output, chosen, display, command_line(sys.argv[1:]))
    for line in time_lines((*timed.times, *report.times), perf_counter() - start):
        click.echo(line, err=True)
    for draft in report.bundle.manifest.drafts:
        if shared := draft.shared_vocabulary:
            known = f"{shared.shared_tokens} of the target's {shared.target_tokens} tokens ({shared.overlap:.1%})"
            click.echo(f"the {draft.label} can propose {known}", err=True)
    if (table := read_precision(report.bundle)) is not None:
        click.echo("\n".join(table_lines(table)), err=True)
    for label, model in report.bundle.manifest.models.items():
        if found := model.fidelity:
            moved = f"KL divergence {found.divergence:.4f} nats from the exact model"
            agrees = f"same top-1 token {found.agreement:.1%}"
            click.echo(
                f"{label} in {model.format}: {moved}, {agrees}, perplexity {found.loss:+.2%}; {found.measured_on}",
                err=True,
            )
        for line in (*model.notes, *(layers.summary for layers in model.layer_proofs)):
            click.echo(f"{label}: {line}", err=True)
    for line in report.bundle.manifest.defaults.lines:
        click.echo(f"generation_config.json: {line}", err=True)
    for label, model in report.bundle.manifest.models.items():
        for proof in model.proofs:
            click.echo(
                f"proved {label} {proof.dialect}: {proof.rows} rows up to {proof.length} tokens, "
                f"{proof.measure} (allowed {proof.limit})",
                err=True,
            )
    _say_what_it_is(report.bundle, output)
    click.echo(str(output))


def _say_what_it_is(bundle: Bundle, output: Path) -> None:
    """Print the last lines of a build: a summary, and what to do next."""
    manifest = bundle.manifest
    models = ", ".join(
        f"{label} of {model.num_parameters / 1e6:,.1f} M weights in "
        f"{manifest.contract.precision if model.format == 'float' else model.format}"
        for label, model in manifest.models.items()
    )
    size = sum(file.bytes for file in manifest.files.values()) / 1e6
    engines = ", ".join(manifest.engines)
    click.echo(f"\n{output.name}: {models}; {size:,.0f} MB for {engines}, every graph proved", err=True)
    click.echo(_what_is_next(bundle, shlex.quote(str(output))), err=True)


def _what_is_next(bundle: Bundle, place: str) -> str:
    """How to use and calibrate the bundle, or how to move it to a host that can run one of its engines."""
    from ..engines.catalogue import LIBRARIES
    from ..engines.registry import availabilities

    manifest = bundle.manifest
    planned = {plan.engine for plan in manifest.plans}
    waiting = [engine for engine in manifest.engines if engine in LIBRARIES and engine not in planned]
    found = availabilities()
    asked = f'specexport generate {place} --prompt "..."'
    chat = f"specexport chat {place} (if it was trained to chat), " if manifest.text.chat_template else ""
    use = f"{chat}{asked}, specexport calibrate {place} --prompts FILE"
    compiling = ", ".join(f"specexport compile {place} --engine {engine}" for engine in waiting)
    if any(found[engine].usable for engine in manifest.engines if engine not in waiting):
        return f"next: {use}" + (f"; on the device: {compiling}" if waiting else "")
    if waiting:
        return f"next: copy the bundle to the device, and there: {compiling}"
    return f"next, on a host with the GPU (none here that the bundle's engines can use): {use}"
