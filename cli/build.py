"""`specexport build`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from .doctor import require_packages
from .group import command_line
from .options import FILE, compile_options, compiling, output_option
from .progress import time_lines

if TYPE_CHECKING:
    from ..bundle import Bundle


def _taps(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of layers; expected numbers as in 2,15,27") from None


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
    help="Draft: a smaller model (as for --target), or one made for the target: an EAGLE-3 head, DFlash, DSpark or "
    "a Gemma 4 assistant; mtp: the target's own MTP layer; lookup: none. Repeatable; the first is the default. "
    "[default: prompt lookup]",
)
@output_option("Bundle folder to create.")
@click.option(
    "--min-overlap",
    type=float,
    default=0.5,
    help="For a draft with another tokenizer: minimum share of the calibration texts' tokens that it must have.",
)
@click.option(
    "--max-seq-len",
    type=int,
    help="Maximum sequence length in tokens, prompt included. [default: the models' maximum, at most 4096]",
)
@click.option("--max-draft-tokens", type=int, default=4, help="Maximum draft tokens per round, 1 to 32.")
@click.option(
    "--tree-rows",
    type=int,
    default=0,
    help="Maximum candidates per round, for --verification spectr, 0 to 32; on onnxruntime.",
)
@click.option(
    "--prompt-chunk",
    type=int,
    help="Prompt tokens per pass. [default: 256; onnxruntime-cuda: 64 to 512, an eighth of the cache; plans, or "
    "several engines: 64; mixtures of experts: less]",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    help="Weight precision: fp32, fp16, bf16, int8, int4 or fp8.",
)
@click.option(
    "--draft-precision",
    help="Weight precision of the draft. [default: as --precision; int4 with fp16 for onnxruntime-cuda, tensorrt-rtx "
    "and tensorrt from 10.15 on]",
)
@click.option(
    "--draft-taps",
    metavar="I,J,...",
    callback=_taps,
    help="EAGLE-3, DFlash, DSpark: indices into transformers' hidden_states of the target that the draft reads. "
    "[default: as its config says]",
)
@click.option(
    "--draft-feedback",
    type=click.Choice(["pre", "post"]),
    help="EAGLE-3: whether the head reads its own previous output from before or after the last norm. [default: as its "
    "config says]",
)
@click.option(
    "--draft-vocabulary",
    type=int,
    help="MTP, assistants: how many tokens the draft can propose, the most frequent ones in the calibration prompts. "
    "[default: all]",
)
@click.option(
    "--cache-precision",
    help="Precision of keys and values, fp32 or fp16. [default: fp16 with quantized weights, except on CPUs "
    "without specexport-kernels; else that of --precision]",
)
@click.option(
    "--calibration-prompts",
    "calibration_texts",
    type=FILE,
    help="int8, int4, fp8, --draft-vocabulary: JSONL of prompts, at least 512 tokens. [default: a built-in set]",
)
@click.option("--engine", "engines", multiple=True, default=["onnxruntime"], help="Engine to build for; repeatable.")
@click.option(
    "--portable",
    is_flag=True,
    help="onnxruntime: also make graphs, with their own weights, for hosts without specexport-kernels.",
)
@click.option(
    "--tensorrt-version",
    metavar="X.Y",
    help="TensorRT version on the device that will run the bundle. [default: this host's, else 10.15]",
)
@compiling
@click.option("--force", is_flag=True, help="Overwrite an existing bundle.")
@click.option("--cache", type=FILE, help="Build cache. [default: specexport in $XDG_CACHE_HOME or ~/.cache]")
def build(target: str, drafts: tuple[str, ...], output: Path, engines: tuple[str, ...], **options: Any) -> None:
    """Build a bundle from a target and a draft, and check it.

    Exports the models, checks the graphs against the Hugging Face models, and compiles plans if the engine needs them.
    """
    start = perf_counter()
    require_packages()
    from ..bundle.output import check_free
    from ..editing.display import BuildDisplay
    from ..editing.progress import Silent, Timed
    from ..exporter.options import BuildOptions, parse_drafts
    from ..exporter.sources import check_sources, look_on_hub
    from ..exporter.stage_cache import open_cache
    from ..runtime.describe import describe, summary
    from ..runtime.policy.routes import POLICY
    from ..user_cache import user_cache

    # Before the display and the slow imports, so that a wrong option is refused at once.
    plans = compile_options(options)
    named = parse_drafts(drafts)
    engines = tuple(dict.fromkeys(engines))
    chosen = BuildOptions(engines=engines, compiling=plans, **options)
    check_sources(target, named, chosen)
    chosen.check(named, str(output))
    check_free(output, chosen.force)
    open_cache(chosen.cache or user_cache())
    calibrated = (output / POLICY).is_file()
    look_on_hub([target, *(one.source for one in named)])
    timed = Timed(Silent())  # a package that cannot be imported is one line, with no stage before it
    with BuildDisplay() as display:
        with timed.stage("import packages", 1):
            from ..exporter.build import build as run

        report = run(target, named, output, chosen, display, command_line(sys.argv[1:]))
    lines = time_lines((*timed.times, *report.times), perf_counter() - start)
    click.echo("\n".join([*lines, "", summary(describe(report.bundle)), ""]), err=True)
    if calibrated:
        click.echo("warning: the bundle that this replaces was calibrated; calibrate the new one", err=True)
    click.echo(_next_steps(report.bundle, shlex.quote(str(output))), err=True)
    click.echo(str(output))


def _next_steps(bundle: Bundle, place: str) -> str:
    """How to use and calibrate the bundle, or how to move it to a host that can run one of its engines."""
    from ..engines.catalogue import LIBRARIES
    from ..engines.registry import availabilities

    manifest = bundle.manifest
    planned = {plan.engine for plan in manifest.plans}
    waiting = [engine for engine in manifest.engines if engine in LIBRARIES and engine not in planned]
    hosted = availabilities()
    compiling = [f"specexport compile {place} --engine {engine}    # on the device" for engine in waiting]
    use = [f"specexport chat {place}    # if it was trained to chat"] if manifest.text.chat_template else []
    use += [
        f'specexport generate {place} --prompt "..."',
        f"specexport calibrate {place} --prompts FILE    # chooses drafters by kind of request",
        f"specexport inspect {place}    # notes, proofs and all else",
    ]
    if any(hosted[engine].usable for engine in manifest.engines if engine not in waiting):
        return "\n    ".join(["next:", *use, *compiling])
    if waiting:
        return "\n    ".join(["next, when the bundle is copied to the device:", *compiling])
    return "\n    ".join(["next, on a host with the GPU (none here that the bundle's engines can use):", *use])
