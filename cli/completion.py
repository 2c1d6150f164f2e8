"""`specexport completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion in a shell.

    \b
    bash: eval "$(specexport completion bash)" in ~/.bashrc
    zsh:  eval "$(specexport completion zsh)" in ~/.zshrc
    fish: specexport completion fish > ~/.config/fish/completions/specexport.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "specexport", "_SPECEXPORT_COMPLETE").source())
