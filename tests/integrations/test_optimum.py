"""`optimum-cli export specexport`: found by optimum's command line, and `specexport build` behind it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "integrations/optimum"
CODE = "from optimum.commands.optimum_cli import main; main()"

try:
    distribution("optimum")
except PackageNotFoundError:  # the wheel's own folder makes a namespace of that name
    pytest.skip("optimum is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With the module where the wheel puts it, unless an editable install has it already."""
    if importlib.util.find_spec("optimum.commands.register.register_specexport") is not None:
        return dict(os.environ)
    site = tmp_path_factory.mktemp("site")
    (site / "optimum/commands").mkdir(parents=True)
    (site / "optimum/commands/register").symlink_to(FOLDER)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


def optimum_cli(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_wrong_checkpoint_is_one_line_of_the_build(environment: dict[str, str], tmp_path: Path) -> None:
    target, output = str(tmp_path / "nothing"), str(tmp_path / "o.bundle")
    done = optimum_cli(environment, "export", "specexport", "--model", target, output, "--precision", "fp32")
    assert done.returncode == 2
    assert f"there is no folder {target}" in done.stderr.splitlines()[-1]


def test_the_command_line_becomes_that_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import ArgumentParser

    spec = importlib.util.spec_from_file_location("register_specexport", FOLDER / "register_specexport.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen: list[list[str]] = []
    monkeypatch.setattr("specexport.__main__.main", lambda: seen.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", ["optimum-cli"])
    [(command, _)] = module.REGISTER_COMMANDS
    subparsers = ArgumentParser().add_subparsers()
    made = command(subparsers)
    for given in (["-m", "T", "o", "--precision", "int8", "--draft", "b=D"], ["-m", "T", "--draft", "D", "o"]):
        made.args = made.parser.parse_args(given)
        made.run()
    assert seen == [
        ["specexport", "build", "--target", "T", "--output", "o", "--precision", "int8", "--draft", "b=D"],
        ["specexport", "build", "--target", "T", "--draft", "D", "--output", "o"],
    ]
