"""An environment for each client, made once and kept outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from clients import HERE, Client


class SetupError(Exception):
    """An environment could not be made: one line that names the client."""


def folder_of(name: str) -> Path:
    """In `SPECEXPORT_CLIENTS`, or a folder of the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SPECEXPORT_CLIENTS") or Path(cache) / "specexport-clients") / name


def make(name: str, client: Client) -> list[str]:
    """The command that runs the client's script; packages are installed first unless just these are there already.

    Raises `SetupError`.
    """
    folder, wanted = folder_of(name), "\n".join(client.packages)
    program = shutil.which("node") if client.in_node else str(folder / "bin/python")
    if program is None:
        raise SetupError(f"{name} needs node and npm, which are not here; install them, or name others with --only")
    # node looks for packages beside the script, so the script runs from a copy.
    script = folder / client.script if client.in_node else HERE / client.script
    if not (folder / "ready").exists() or (folder / "ready").read_text(encoding="utf-8") != wanted:
        print(f"{name}: installing {', '.join(client.packages)} in {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        steps: list[list[str]] = [
            [sys.executable, "-m", "venv", str(folder)],
            [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *client.packages],
        ]
        if client.in_node:
            steps = [["npm", "install", "--silent", "--prefix", str(folder), *client.packages]]
        for step in steps:
            if subprocess.run(step, stdout=sys.stderr, check=False).returncode:
                raise SetupError(f"{name} could not be installed: {' '.join(step)} failed; its output is above")
        (folder / "ready").write_text(wanted, encoding="utf-8")
    if client.in_node:
        for source in HERE.glob("*.mjs"):
            shutil.copy(source, folder)
    return [program, str(script)]
