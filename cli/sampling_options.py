"""Command-line options for the fields of `SamplingParameters`, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ..runtime.sampling.options import Biases, Choice, Flag, Number, Option, Texts, TokenIds, Whole
from ..runtime.sampling.parameters import UNADJUSTED, SamplingParameters

if TYPE_CHECKING:
    from ..runtime.session import Session


OF_BUNDLE = "[default: the bundle's, see inspect]"
OF_DRAFTS = ("num_draft_tokens", "num_leaves", "drafter", "prediction")


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds them; the command gets each under its field's name. --plain with an option of drafts is a usage error."""

    @wraps(command)
    def run(**options: Any) -> None:
        given = next((name for name in OF_DRAFTS if options.get(name)), None)
        if given is not None and not options["speculate"]:
            raise click.UsageError(
                f"--{given.replace('_', '-')} is for drafts, and --plain does not draft; give only one"
            )
        command(**options)

    found: Callable[..., None] = run
    for one in reversed(fields(SamplingParameters)):
        if one.metadata["option"].flag != "":
            found = _click_option(one, one.metadata["option"])(found)
    return found


def note_route(session: Session, route: str | None) -> None:
    """Says on stderr that a route has no effect, where the policy does not know it."""
    policy = session.decisions.policy
    if route is None or (policy is not None and route in policy.routes):
        return
    if policy is None:
        told = "this bundle has no policy; specexport calibrate --prompts FILE makes one"
    else:
        told = (
            f"the policy has {', '.join(policy.routes) or 'no routes'}; the request is decoded like one without a route"
        )
    click.echo(f"--route {route} has no effect: {told}", err=True)


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
        settings |= {"is_flag": True, "default": False, "show_default": False, "callback": _negated}
    elif isinstance(option, TokenIds):
        settings |= {"type": int, "multiple": True, "metavar": "ID", "callback": _given}
    elif isinstance(option, Biases):
        settings |= {"multiple": True, "metavar": "ID=BIAS", "callback": _biases}
    elif isinstance(option, Texts):
        settings |= {"multiple": True, "callback": _given}
    if one.name in UNADJUSTED:
        settings["help"] += f" {OF_BUNDLE}"
    return click.option(option.flag or f"--{one.name.replace('_', '-')}", one.name, **settings)


def _negated(context: click.Context, parameter: click.Parameter, given: bool) -> bool:
    return not given


def _given(context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """None, which is the bundle's default, where the option was not given."""
    return values or None


def _biases(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in given:
        token, _, bias = text.partition("=")
        try:
            number, value = int(token), float(bias)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not ID=BIAS, such as 15=-2.5") from None
        if number in found:
            raise click.BadParameter(f"token {number} is given twice; give each token once")
        found[number] = value
    return found
