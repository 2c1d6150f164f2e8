"""The command line: parse, call one public function, print. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import SpecExportError
from .version import VERSION

if TYPE_CHECKING:
    from .engines.base import Availability
    from .engines.tensorrt_compile import CompileOptions
    from .runtime.statistics import Statistics

EXPORTER_EXTRA = "pip install 'specexport[export]'"

BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
ENGINE = click.option("--engine", help="Engine to run on; by default the first usable one of the bundle.")
THREADS = click.option("--threads", type=click.IntRange(0, 1024), default=0, help="Threads of the engine; 0 leaves it to the engine.")
DRAFTER = click.option("--drafter", help="model, ngram, suffix, ngram+model or suffix+model. [default: the model, ngram without one]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

# Of `build` and `compile`, for engines that run plans.
COMPILING = (
    click.option(
        "--compute-capability",
        "compute_capabilities",
        multiple=True,
        metavar="X.Y",
        help="TensorRT-RTX: compile for GPUs of this one; may be repeated. [default: the library's choice]",
    ),
    click.option("--hardware-compatible", is_flag=True, help="TensorRT: plans for every GPU from 8.0 on, at some cost in speed."),
    click.option("--version-compatible", is_flag=True, help="TensorRT: plans for the lean runtime too."),
    click.option("--weight-streaming", is_flag=True, help="Weights may stay in host memory where the GPU's is too small."),
    click.option("--timing-cache", type=click.Path(path_type=Path), help="TensorRT: file of measurements that later builds reuse."),
)


def compiling(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `CompileOptions`."""
    for option in reversed(COMPILING):
        command = option(command)
    return command


class Commands(click.Group):
    """Ends a user's mistake in one line on stderr and exit code 1, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecExportError as error:
            raise click.ClickException(str(error)) from None
        except ImportError as error:
            name, reason = error.name or "a package", str(error).partition("\n")[0]
            if name.startswith("specexport"):
                raise
            if isinstance(error, ModuleNotFoundError) and error.name and "." not in name:
                message = f"the package {name} is not installed; building needs: {EXPORTER_EXTRA}"
            else:
                message = f"{name.partition('.')[0]} is installed, but cannot be imported: {reason}; install it again"
            raise click.ClickException(message) from None
        except BrokenPipeError:
            # The reader of stdout is gone; so that Python's own flush at exit does not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        except OSError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="specexport")
def main() -> None:
    """Compiled speculative decoding at batch 1."""


@main.command()
@click.option("--target", required=True, help="The model whose output you want: a checkpoint folder or a hub id.")
@click.option(
    "--draft", help="A smaller model: a checkpoint folder or a hub id. Without one, drafts are looked up in the text of the request."
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle folder to make.")
@click.option(
    "--min-overlap",
    type=float,
    default=0.5,
    show_default=True,
    help="Where the draft has another tokenizer: the part of the target's tokens that it must have, from 0 to 1.",
)
@click.option("--max-seq-len", type=int, help="Longest sequence in tokens, prompt included. [default: what the models allow, at most 4096]")
@click.option("--max-draft-tokens", type=int, default=4, show_default=True, help="Largest number of tokens to draft in a round.")
@click.option("--prompt-chunk", type=int, default=64, show_default=True, help="Prompt tokens fed in one pass.")
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    help="Number format of the weights: fp32, fp16, bf16, int8, int4, fp8, or auto, which measures what is fastest here.",
)
@click.option("--draft-precision", help="The same for the draft, where its weights are to be stored otherwise. [default: --precision]")
@click.option(
    "--max-divergence",
    type=float,
    help="auto: by how many nats (mean KL divergence) the target's distributions may move. [default: 0.02]",
)
@click.option(
    "--calibration-prompts",
    "calibration_texts",
    type=click.Path(path_type=Path),
    help="int8, int4, fp8, auto: JSONL of prompts that show what the layers are fed, 512 tokens or more. [default: a set of our own]",
)
@click.option(
    "--engine", "engines", multiple=True, default=["onnxruntime"], show_default=True, help="Engine to build for; may be repeated."
)
@click.option("--tensorrt-version", metavar="X.Y", help="TensorRT on the device that will run the bundle. [default: this host's]")
@compiling
@click.option("--force", is_flag=True, help="Replace a bundle that exists.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder of finished stages. [default: ~/.cache/specexport]")
def build(target: str, draft: str | None, output: Path, engines: tuple[str, ...], **options: Any) -> None:
    """Compile a target, and a draft model if there is one, into a proven bundle."""
    from .exporter.display import BuildDisplay

    if missing := _missing_exporter():
        raise click.ClickException(f"the package {missing[0]} is not installed; building needs: {EXPORTER_EXTRA}")
    with BuildDisplay() as display:
        from .exporter.build import BuildOptions
        from .exporter.build import build as run
        from .runtime.precision import read_precision, table_lines

        options["engines"] = tuple(dict.fromkeys(engines))
        options["compiling"] = _compile_options(options)
        report = run(target, draft, output, BuildOptions(**options), display, shlex.join(["specexport", *sys.argv[1:]]))
    for time in report.times:
        click.echo(f"{time.label:<20} {'reused' if time.reused else f'{time.seconds:6.1f} s'}", err=True)
    if vocabulary := report.bundle.manifest.vocabulary:
        known = f"{vocabulary.shared_tokens} of the target's {vocabulary.target_tokens} tokens"
        click.echo(f"the draft can propose {known} ({vocabulary.overlap:.1%})", err=True)
    if (table := read_precision(report.bundle)) is not None:
        click.echo("\n".join(table_lines(asdict(table))), err=True)
    for role, model in report.bundle.manifest.models.items():
        if model.fidelity is not None:
            moved = f"{model.fidelity.divergence:.4f} nats from the exact model, perplexity {model.fidelity.loss:+.2%}"
            click.echo(f"{role} in {model.format}: {moved}, on {model.fidelity.tokens} tokens", err=True)
        for note in model.notes:
            click.echo(f"{role}: {note}", err=True)
    for proof in report.bundle.manifest.proofs:
        click.echo(
            f"proved {proof.role} {proof.dialect}: {proof.rows} rows up to {proof.length} tokens, "
            f"{proof.max_error:.1e} standard deviations off (allowed {proof.tolerance:.0e})",
            err=True,
        )
    click.echo(str(output))


@main.command("compile")
@BUNDLE
@click.option("--engine", required=True, help="tensorrt, for the GPU of this host, or tensorrt-rtx.")
@compiling
def compile_plans(bundle: Path, engine: str, **options: Any) -> None:
    """Compile a bundle's graphs for an engine, on the device that runs them or, for tensorrt-rtx, anywhere.

    Plans that the bundle has for the engine are replaced. Needs neither torch nor the checkpoints.
    """
    from .bundle import Bundle
    from .exporter.display import BuildDisplay

    with BuildDisplay() as display:
        from .exporter.compile import compile_bundle

        chosen = _compile_options(options)
        with display.stage("check the bundle", 1):
            opened = Bundle.open(bundle, without_plans=engine)
        manifest = compile_bundle(opened, engine, chosen, display).manifest
    plans = [plan for plan in manifest.plans if plan.engine == engine]
    size = sum(manifest.files[plan.file].bytes for plan in plans)
    click.echo(f"{len(plans)} plans by {engine} {plans[0].version}, {size / 1e6:.1f} MB", err=True)
    click.echo(str(bundle))


@main.command()
@BUNDLE
@click.option("--prompt", help="Text to continue; '-' reads it from stdin.")
@click.option("--messages", type=click.File(), help="Chat messages: a JSON file with a list of {role, content}.")
@click.option("--max-new-tokens", type=int, default=256, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0 is off.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="0 is off.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="Of tokens in prompt and output; 1 is off.")
@click.option("--presence-penalty", type=float, default=0.0, show_default=True, help="Of tokens in the output; 0 is off.")
@click.option("--frequency-penalty", type=float, default=0.0, show_default=True, help="The same, for every time; 0 is off.")
@click.option("--logit-bias", multiple=True, metavar="ID=BIAS", help="Added to the logit of a token; may be repeated.")
@click.option("--ban-token", "banned_tokens", type=int, multiple=True, metavar="ID", help="Never emit this token; may be repeated.")
@click.option("--min-new-tokens", type=int, default=0, show_default=True, help="Stop tokens are forbidden before.")
@click.option("--seed", type=int, help="Makes sampling repeatable.")
@click.option(
    "--verification", type=click.Choice(["block", "token"]), default="block", show_default=True, help="How sampled drafts are judged."
)
@click.option("--stop", multiple=True, help="End before this text; may be repeated.")
@click.option("--num-draft-tokens", type=int, help="Tokens to draft a round, 0 for none. [default: as the policy says, else the maximum]")
@click.option("--route", help="What kind of request this is, for the bundle's policy.")
@DRAFTER
@click.option("--plain", is_flag=True, help="Decode without speculation.")
@ENGINE
@THREADS
@JSON
def generate(
    bundle: Path,
    prompt: str | None,
    messages: Any,
    engine: str | None,
    threads: int,
    as_json: bool,
    plain: bool,
    logit_bias: tuple[str, ...],
    **options: Any,
) -> None:
    """Continue a prompt; the text streams to stdout, statistics go to stderr."""
    if (prompt is None) == (messages is None):
        raise click.UsageError("give either --prompt or --messages")
    from .runtime.session import load

    if messages is None:
        given: Any = _stdin() if prompt == "-" else prompt
    else:
        given = _messages(messages)
    biases = _biases(logit_bias)
    session = load(bundle, engine, threads)
    stream = session.stream(given, speculate=not plain, logit_bias=biases, **options)
    text, finish_reason, statistics = "", "cancelled", None
    tokens: list[int] = []
    try:
        for chunk in stream:
            text += chunk.text
            tokens += chunk.tokens
            statistics = chunk.statistics
            finish_reason = chunk.finish_reason or finish_reason
            if not as_json:
                click.echo(chunk.text, nl=False)
    except KeyboardInterrupt:
        click.echo("", err=True)
    row = statistics.as_dict() if statistics else {}
    if as_json:
        result = {"text": text, "tokens": tokens, "finish_reason": finish_reason, "statistics": row}
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        click.echo()
        if statistics:
            click.echo(f"[{finish_reason}] {summary(statistics)}", err=True)
    if finish_reason == "cancelled":
        raise SystemExit(130)


@main.command()
@BUNDLE
@JSON
def inspect(bundle: Path, as_json: bool) -> None:
    """Show a bundle's models, graphs, memory, proofs and digests."""
    from .bundle import Bundle
    from .runtime.inspect import describe, render

    description = describe(Bundle.open(bundle))
    click.echo(json.dumps(description, indent=1) if as_json else render(description))


@main.command()
@BUNDLE
@click.option("--prompts", type=click.Path(path_type=Path), help='JSONL with {"prompt": ...} lines. [default: the proof\'s own tokens]')
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--trials", type=click.IntRange(0), default=0, help="Also sample so often (L3): hundreds at least, 10000 find small errors.")
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
    from .runtime.session import load
    from .runtime.verify import render, verify_session

    result = verify_session(load(bundle, engine, threads), prompts, max_new_tokens, trials, drafter)
    click.echo(json.dumps(result.as_dict()) if as_json else render(result))
    if not result.passed:
        raise SystemExit(1)


@main.command()
@BUNDLE
@click.option(
    "--prompts", required=True, type=click.Path(path_type=Path), help='JSONL with {"route": ..., "prompt" or "messages": ...} lines.'
)
@click.option("--skip-invalid", is_flag=True, help="Leave out lines that cannot be used, instead of refusing the file.")
@click.option("--route", "routes", multiple=True, help="Only requests of this route; may be repeated.")
@click.option("--limit", type=click.IntRange(1), help="Requests of each route. [default: all]")
@click.option("--num-draft-tokens", type=click.IntRange(1), help="Tokens to draft a round. [default: as the bundle's policy says]")
@DRAFTER
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True, help="Of lines that do not say.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy, where outputs are compared.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0 is off.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each request, both ways.")
@click.option(
    "--journal",
    "--resume",
    type=click.Path(path_type=Path),
    help="Where the run is kept until it is finished; the same command goes on there. [default: BUNDLE/calibration/bench.jsonl]",
)
@ENGINE
@THREADS
@JSON
def bench(
    bundle: Path,
    prompts: Path,
    skip_invalid: bool,
    routes: tuple[str, ...],
    limit: int | None,
    journal: Path | None,
    engine: str | None,
    threads: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure plain against speculative decoding on your prompts, in turn, and compare the outputs.

    Exit code 1 when greedy outputs differ. An interrupted run goes on where it stopped.
    """
    from .calibration.bench import BenchOptions, check, journal_header
    from .calibration.bench import bench as run
    from .calibration.bench_table import render
    from .calibration.journal import Journal
    from .calibration.predict import predict_by
    from .calibration.prompts import choose, fit, read_prompt_lines
    from .runtime.costs import COSTS, Costs
    from .runtime.decisions import read_decision, stale
    from .runtime.session import load

    chosen = BenchOptions(**options)
    lines, broken = read_prompt_lines(prompts, skip_invalid)
    session = load(bundle, engine, threads)
    requests, refused = fit(session, lines, chosen.max_new_tokens, skip_invalid)
    for message in (*broken, *refused):
        click.echo(f"left out: {message}", err=True)
    requests = choose(requests, routes, limit)
    check(session, requests, chosen)
    path, pairs = journal or bundle / "calibration" / "bench.jsonl", len(requests) * chosen.repeats
    with Journal.open(path, journal_header(session, requests, chosen)) as kept:
        if kept.replaced:
            click.echo(f"{path} was of another run and is replaced", err=True)
        elif kept.finished:
            click.echo(f"going on behind {len(kept.finished)} of {pairs} pairs that {path} holds; delete it to start over", err=True)
        try:
            with _bar("bench") as advance:
                costs = read_decision(session.bundle, Costs, COSTS)
                fresh = costs is not None and not stale(costs, session.engine.name, session.threads)
                result = run(session, requests, chosen, kept, advance, predict_by(costs) if costs and fresh else None)
        except KeyboardInterrupt:
            click.echo(f"interrupted; {path} holds {len(kept.finished)} of {pairs} pairs, and the same command goes on there", err=True)
            raise SystemExit(130) from None
        click.echo(json.dumps(result.as_dict()) if as_json else render(result))
        kept.remove()
    if journal is None:
        with suppress(OSError):  # other files may lie there
            path.parent.rmdir()
    if not result.passed:
        raise SystemExit(1)


@main.command()
@BUNDLE
@click.option(
    "--prompts", type=click.Path(path_type=Path), help='JSONL with {"route": ..., "prompt" or "messages": ...} lines. Without: costs only.'
)
@click.option("--skip-invalid", is_flag=True, help="Leave out lines that cannot be used, instead of refusing the file.")
@click.option("--limit", type=click.IntRange(1), help="Requests of each route. [default: all]")
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True, help="Of lines that do not say.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Of the requests; 0 is greedy.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0 is off.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--drafter", "drafters", multiple=True, help="Drafter to choose among, or all; may be repeated. [default: as generate's]")
@click.option("--floor", type=float, default=0.9, show_default=True, help="Speedup that the slowest tenth must reach for a route to be on.")
@click.option("--fixed", is_flag=True, help="Write a policy that drafts the best fixed number, instead of adapting it every round.")
@click.option("--report", type=click.Path(path_type=Path), help="The HTML report. [default: BUNDLE/report.html]")
@ENGINE
@THREADS
@JSON
def calibrate(
    bundle: Path,
    prompts: Path | None,
    skip_invalid: bool,
    limit: int | None,
    max_new_tokens: int,
    fixed: bool,
    report: Path | None,
    engine: str | None,
    threads: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure costs and acceptance on this host and your prompts, and decide by route whether to speculate.

    Writes costs.json, survival.json and policy.json into the bundle, which sessions then follow, and a report. An
    interrupted run goes on where it stopped.
    """
    from .calibration.calibrate import CalibrateOptions, check_packages, measure_only
    from .calibration.calibrate import calibrate as run
    from .calibration.prompts import choose, fit, read_prompt_lines
    from .calibration.report import write_report
    from .calibration.summary import render
    from .runtime.session import load

    chosen = CalibrateOptions(mode="fixed" if fixed else "adaptive", **options)
    if report is not None and (report.is_dir() or not report.parent.is_dir()):
        raise click.ClickException(f"--report is {report}; expected a file in a folder that exists")
    if prompts is None:
        session = load(bundle, engine, threads, policy=False)
        with _bar("costs") as advance:
            costs = measure_only(session, chosen, advance)
        click.echo(json.dumps(asdict(costs)) if as_json else str(bundle / "costs.json"))
        return
    check_packages()
    lines, broken = read_prompt_lines(prompts, skip_invalid)
    session = load(bundle, engine, threads, policy=False)
    requests, refused = fit(session, lines, max_new_tokens, skip_invalid)
    for message in (*broken, *refused):
        click.echo(f"left out: {message}", err=True)
    requests = choose(requests, (), limit)
    try:
        with _bar("calibrate") as advance:
            analysis = run(session, requests, chosen, shlex.join(["specexport", *sys.argv[1:]]), advance)
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on where this one stopped", err=True)
        raise SystemExit(130) from None
    click.echo(json.dumps(analysis.as_dict()) if as_json else render(analysis))
    write_report(analysis, report or bundle / "report.html")
    click.echo(str(report or bundle / "report.html"), err=True)


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Told (steps done, steps in all), shows a bar on a terminal. It is drawn then only: a thread would disturb measurements."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total, refresh=True)


@main.command()
@JSON
def doctor(as_json: bool) -> None:
    """Which engines this host can run, what it can build and compile, and what to install for the rest."""
    from .engines import availabilities
    from .engines.tensorrt_api import LEAN, LIBRARIES, library
    from .engines.tensorrt_api import found as usable
    from .engines.tensorrt_compile import describe_compiler

    found = availabilities() | {"tensorrt-lean": usable(lambda: library(LEAN).title), "build": _building()}
    found |= {f"compile for {engine}": usable(partial(describe_compiler, engine)) for engine in LIBRARIES}
    if as_json:
        click.echo(json.dumps({name: vars(entry) for name, entry in found.items()}))
        return
    for name, entry in found.items():
        mark = "yes" if entry.usable else "no "
        click.echo(f"{mark}  {name}: {entry.detail}{'' if entry.usable else '; ' + entry.remedy}")


def _compile_options(options: dict[str, Any]) -> CompileOptions:
    """Takes what belongs to them out of `options`."""
    from .engines.tensorrt_compile import CompileOptions

    return CompileOptions(**{field.name: options.pop(field.name) for field in fields(CompileOptions)})


def _missing_exporter() -> list[str]:
    return [name for name in ("torch", "transformers", "safetensors", "onnx_ir", "onnxscript") if find_spec(name) is None]


def _building() -> Availability:
    from .engines.base import Availability

    if missing := _missing_exporter():
        return Availability(False, f"{', '.join(missing)} not installed", EXPORTER_EXTRA)
    return Availability(True, "the exporter's packages are installed")


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"the prompt on stdin is not UTF-8: {error}") from None


def _biases(given: tuple[str, ...]) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in given:
        token, _, bias = text.partition("=")
        try:
            number, value = int(token), float(bias)
        except ValueError:
            raise click.BadParameter(f"{text!r} is no ID=BIAS, such as 15=-2.5", param_hint="--logit-bias") from None
        if number in found:
            raise click.BadParameter(f"token {number} is given twice; give each token once", param_hint="--logit-bias")
        found[number] = value
    return found


def _messages(file: Any) -> list[Any]:
    try:
        found = json.load(file)
    except (ValueError, RecursionError) as error:  # also: no UTF-8
        raise click.ClickException(f"{file.name} is not JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise click.ClickException(f'{file.name} holds no list of messages; expected [{{"role": "user", "content": "..."}}]')
    return found


def summary(statistics: Statistics) -> str:
    """One line for people: what the request did and where its time went."""
    row = statistics
    parts = [f"{row.emitted} tokens", f"{row.tokens_per_second:.1f} tokens/s", f"first after {row.first_token_seconds * 1e3:.1f} ms"]
    if row.drafted:
        by_position = " ".join(f"{a}/{d}" for a, d in zip(row.accepted_by_position, row.drafted_by_position, strict=True))
        parts += [f"{row.mean_acceptance_length:.2f} tokens/round", f"accepted {row.acceptance_rate:.0%} ({by_position})"]
        parts += [f"{row.looked_up} of {row.drafted} draft tokens looked up"] if row.looked_up else []
    whole = row.total_seconds or 1.0
    shares = (("prefill", row.prefill_seconds), ("draft", row.draft_seconds), ("target", row.target_seconds), ("host", row.host_seconds))
    return ", ".join(parts) + "; " + " ".join(f"{name} {seconds / whole:.0%}" for name, seconds in shares)
