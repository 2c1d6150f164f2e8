"""What is published: the source distribution, the extras, the command."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from specexport.cli.doctor import PACKAGES
from specexport.engines.catalogue import ENGINES

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRA = re.compile(r"(?:specexport|\.)\[([a-z,-]+)\]")
MAIN = "from specexport.__main__ import main; main()"


def run(code: str, missing: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    block = f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\nsys.argv = ['specexport', '--version']\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("missing", [("click",), ("rich",), ("click", "rich")])
def test_the_command_without_its_extra_says_in_one_line_what_to_install(missing: tuple[str, ...]) -> None:
    done = run(MAIN, missing)
    assert (done.returncode, done.stdout) == (1, "")
    assert "specexport[cli]" in done.stderr
    assert all(name in done.stderr for name in missing)
    assert len(done.stderr.splitlines()) == 1


def test_the_command_runs_with_its_extra() -> None:
    assert run(MAIN, ()).stdout.startswith("specexport, version ")


def test_the_entry_point_is_there() -> None:
    module, name = PROJECT["scripts"]["specexport"].split(":")
    assert callable(getattr(import_module(module), name))


def test_every_extra_that_anything_names_exists() -> None:
    outside = {"build", "dist", "tests"}
    files = [*ROOT.glob("[!.]*/**/*.py"), *ROOT.glob("*.py"), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {
        (extra, str(path.relative_to(ROOT)))
        for path in files
        if path.relative_to(ROOT).parts[0] not in outside
        for found in EXTRA.findall(path.read_text(encoding="utf-8"))
        for extra in found.split(",")
    }
    assert len(named) > 5
    assert {(extra, path) for extra, path in named if extra not in PROJECT["optional-dependencies"]} == set()


def test_every_engine_has_its_extra() -> None:
    assert {info.extra or name for name, info in ENGINES.items()} <= PROJECT["optional-dependencies"].keys()


def test_doctor_asks_for_what_the_extra_says() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    lines = (line.partition(";")[0] for line in extra["export"])
    found = dict(re.fullmatch(r"([\w-]+)(\S*)", line.strip()).groups() for line in lines if "[" not in line)  # type: ignore[union-attr]
    assert found == PACKAGES


def test_the_published_description_links_to_nothing_relative() -> None:
    text = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https://)", text) == []


def test_the_source_distribution_has_every_folder() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {line.split("/")[0] for line in listed.splitlines() if "/" in line}
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    named = {line.split()[1] for line in lines if line.startswith(("graft ", "recursive-include "))}
    assert folders == named
