"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from ..bundle.drafts import DRAFTER_DEFAULT, DRAFTERS_HELP
from ..errors import GrammarError, ParameterError
from ..runtime.sampling.options import Biases, Choice, Flag, Number, Option, Texts, TokenIds, Whole
from ..runtime.sampling.parameters import UNADJUSTED, SamplingParameters

if TYPE_CHECKING:
    from ..engines.tensorrt.compile import CompileOptions
    from ..runtime.session import Session


class FilePath(click.Path):
    """Rejects an empty one, which `Path` takes for the current folder: a variable of a script was not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("it is empty; give a path.", param, ctx)
        return super().convert(value, param, ctx)


FILE = FilePath(path_type=Path)
STDIN = "specexport.cli.stdin"  # in a context: the option that reads it
BUNDLE = click.argument("bundle", type=FILE)
PROMPTS = click.option(
    "--prompts", required=True, type=FILE, help='JSONL file of {"route": ..., "prompt" or "messages": ...} lines.'
)
RUNNING = (
    click.option("--engine", help="Engine to run on. [default: the first of the bundle that this host can run]"),
    click.option(
        "--threads",
        type=click.IntRange(0),
        default=0,
        help="CPU threads; 0: the calibrated number (except in calibrate and verify), else the engine's choice.",
    ),
    click.option("--device", type=click.IntRange(0), help="GPU index, from 0. [default: the first GPU]"),
)
DRAFTER = click.option(
    "--drafter",
    help=f"{DRAFTERS_HELP} {DRAFTER_DEFAULT}",
)
SKIP_INVALID = click.option("--skip-invalid", is_flag=True, help="Skip invalid lines instead of refusing the file.")
LIMIT = click.option("--limit", type=click.IntRange(1), help="Maximum requests per route. [default: all]")
MAX_NEW_TOKENS = click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=128,
    help="Maximum new tokens, unless a prompt's line says otherwise.",
)
TOP_K = click.option("--top-k", type=int, default=0, help="Keep only this many of the likeliest tokens; 0 is off.")
TOP_P = click.option(
    "--top-p", type=float, default=1.0, help="Keep the likeliest tokens up to this probability mass; 1 is off."
)
SEED = click.option("--seed", type=int, default=0, help="Random seed.")
CHAT_TEMPLATE = click.option("--chat-template", type=FILE, help="File with a chat template. [default: the bundle's]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

# Of `build` and `compile`, for engines that run plans.
COMPILING = (
    click.option(
        "--compute-capability",
        "compute_capabilities",
        multiple=True,
        metavar="X.Y",
        help="TensorRT-RTX: compute capability to compile for; repeatable. [default: the library's choice]",
    ),
    click.option(
        "--version-compatible", is_flag=True, help="TensorRT: make plans that also run with the lean runtime."
    ),
)


def from_stdin(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The value of an option, a text or a file, where - is stdin. Raises `click.UsageError` where two take that."""
    if value == "-" or getattr(value, "name", "") == "<stdin>":
        name, first = parameter.opts[0], context.meta.setdefault(STDIN, parameter.opts[0])
        if name != first:
            raise click.UsageError(f"{first} and {name} cannot both come from stdin; give one in another way")
    return value


def text_file(name: str, *names: str, help: str) -> Callable[..., Any]:
    """An option for a file of text."""
    return click.option(name, *names, type=click.File(encoding="utf-8"), callback=from_stdin, help=help)


OF_BUNDLE = "[default: the bundle's, see inspect]"
OF_DRAFTS = ("num_draft_tokens", "num_candidates", "drafter", "prediction")
GRAMMARS = (
    text_file("--json-schema", help="File with a JSON schema for the output."),
    click.option("--regex", help="Regular expression that the whole output must match."),
    click.option("--choice", multiple=True, help="Allowed output; repeatable."),
    text_file("--grammar", "lark", help="File with a Lark grammar for the output."),
)


def output_option(text: str) -> Callable[..., Any]:
    return click.option("-o", "--output", required=True, type=FILE, help=text)


def text_of(file: TextIO) -> str:
    """The text of a file opened as UTF-8, without the byte order mark that some editors begin it with.

    Raises `ParameterError` that names the file and the place.
    """
    try:
        return file.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ParameterError(f"{file.name} is not UTF-8: {error}") from None


def running(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options for where a session runs. The command gets them as one `where`: keywords of `load`."""

    @wraps(command)
    def run(*, engine: str | None, threads: int, device: int | None, **others: Any) -> None:
        command(where={"engine": engine, "threads": threads, "device": device}, **others)

    for option in reversed(RUNNING):
        run = option(run)
    return run


def compiling(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `CompileOptions`."""
    for option in reversed(COMPILING):
        command = option(command)
    return command


def compile_options(options: dict[str, Any]) -> CompileOptions:
    """Removes the compile options from `options` and returns them."""
    from ..engines.tensorrt.compile import CompileOptions

    return CompileOptions(**{field.name: options.pop(field.name) for field in fields(CompileOptions)})


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds them; the command gets each under its field's name. --plain with an option of drafts is a usage error."""

    @wraps(command)
    def run(**options: Any) -> None:
        drafting = next((name for name in OF_DRAFTS if options.get(name)), None)
        if drafting is not None and not options["speculate"]:
            raise click.UsageError(f"{flag_of(drafting)} is for drafts, and --plain does not draft; give only one")
        command(**options)

    command_with: Callable[..., None] = run
    for one in reversed(fields(SamplingParameters)):
        if one.metadata["option"].flag != "":
            command_with = _click_option(one, one.metadata["option"])(command_with)
    return command_with


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def note_unused(session: Session, asked: SamplingParameters) -> None:
    """Says on stderr what has no effect: what truncates while decoding is greedy, and a route that the policy does not
    know.
    """
    truncating = {"top_k": asked.top_k > 0, "top_p": asked.top_p < 1.0, "min_p": asked.min_p > 0.0}
    if asked.greedy and (names := [flag_of(name) for name, truncates in truncating.items() if truncates]):
        click.echo(f"no effect at temperature 0: {', '.join(names)}; give --temperature to sample", err=True)
    policy, route = session.decisions.policy, asked.route
    if route is None or (policy is not None and route in policy.routes):
        return
    reason = "the session follows no policy; specexport calibrate --prompts FILE makes one"
    if policy is not None:
        known = ", ".join(policy.routes) or "no routes"
        reason = f"the policy has {known}; the request is decoded like one without a route"
    click.echo(f"--route {route} has no effect: {reason}", err=True)


def policy_note(session: Session, asked: SamplingParameters, drafted: int) -> str:
    """What follows the statistics of a request, where nothing was drafted because the policy says so."""
    policy, decides = session.decisions.policy, asked.drafter is None and asked.num_draft_tokens is None
    if policy is None or drafted or not (decides and asked.speculate):
        return ""
    entry = policy.of(asked.route)
    plain = entry.verdict == "off" or (entry.mode == "fixed" and not entry.num_draft_tokens)
    return f"; nothing drafted: the policy's verdict is {entry.verdict.upper()}" if plain else ""


def _click_option(one: Field[Any], option: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    settings: dict[str, Any] = {"help": option.help}
    if one.default is not MISSING and one.default is not None:
        settings |= {"default": one.default, "show_default": one.default != ()}
    if isinstance(option, Number):
        settings |= {"type": float, "help": f"{option.help.removesuffix('.')}; {option.off}.".removeprefix("; ")}
    elif isinstance(option, Whole):
        settings["type"] = int
    elif isinstance(option, Choice):
        settings["type"] = click.Choice(option.names)
    elif isinstance(option, Flag):  # named for what it turns off
        settings |= {"is_flag": True, "default": False, "show_default": False, "callback": negated}
    elif isinstance(option, TokenIds):
        settings |= {"type": int, "multiple": True, "metavar": "ID", "callback": none_if_empty}
    elif isinstance(option, Biases):
        settings |= {"multiple": True, "metavar": "ID=BIAS", "callback": _biases}
    elif isinstance(option, Texts):
        settings |= {"multiple": True, "callback": none_if_empty}
    if one.name in UNADJUSTED:
        settings["help"] += f" {OF_BUNDLE}"
    return click.option(option.flag or flag_of(one.name), one.name, **settings)


def negated(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    return not value


def none_if_empty(
    context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """None, which is the bundle's default, where the option was not given."""
    return values or None


def _biases(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for text in values:
        token, _, bias = text.partition("=")
        try:
            number, value = int(token), float(bias)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not ID=BIAS, such as 15=-2.5") from None
        if number in biases:
            raise click.BadParameter(f"token {number} has two biases; give each token once")
        biases[number] = value
    return biases


def grammars(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; the command gets them as one `grammar`, None without any."""

    @wraps(command)
    def run(
        *, json_schema: TextIO | None, regex: str | None, choice: tuple[str, ...], lark: TextIO | None, **others: Any
    ) -> None:
        values = {"--json-schema": json_schema, "--regex": regex, "--choice": choice or None, "--grammar": lark}
        names = [name for name, value in values.items() if value is not None]
        if len(names) > 1:
            raise click.UsageError(f"{names[0]} and {names[1]} cannot be combined; give one of them")
        from ..runtime.grammar.grammar import Grammar

        grammar, file = None, json_schema or lark
        try:
            if json_schema is not None:
                grammar = Grammar.json_schema(text_of(json_schema))
            elif regex is not None:
                grammar = Grammar.regex(regex)
            elif choice:
                grammar = Grammar.choice(choice)
            elif lark is not None:
                grammar = Grammar.lark(text_of(lark))
            command(grammar=grammar, **others)
        except GrammarError as error:  # some are wrong only when the command compiles them
            if not names:
                raise
            message = f"{names[0]}: {error.reason}" if file is None else f"{file.name}: {error}"
            raise GrammarError(message, code=error.code) from None

    for option in reversed(GRAMMARS):
        run = option(run)
    return run
