"""Command-line options for the fields of `SamplingParameters`, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import click

from ..runtime.sampling.options import Biases, Choice, Flag, Number, Option, Texts, TokenIds, Whole
from ..runtime.sampling.parameters import SamplingParameters


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds them; the command gets each under its field's name."""
    for one in reversed(fields(SamplingParameters)):
        if one.metadata["option"].flag != "":
            command = _click_option(one, one.metadata["option"])(command)
    return command


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
        settings |= {"type": int, "multiple": True, "metavar": "ID"}
    elif isinstance(option, Biases):
        settings |= {"multiple": True, "metavar": "ID=BIAS", "callback": _biases}
    elif isinstance(option, Texts):
        settings["multiple"] = True
    return click.option(option.flag or f"--{one.name.replace('_', '-')}", one.name, **settings)


def _negated(context: click.Context, parameter: click.Parameter, given: bool) -> bool:
    return not given


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
