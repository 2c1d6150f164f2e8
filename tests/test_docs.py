"""The documentation: links resolve, files that it names exist, lines are readable."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from setuptools import find_packages
from specexport import SamplingParameters, Statistics

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"")
FOLDERS = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
NAMED_PATH = re.compile(rf"`((?:{FOLDERS})/[\w./*-]*)`")
NAMED_MODULE = re.compile(r"`([\w./]+\.py)`")
MODULES = [str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*.py")] + [
    path.name for path in ROOT.glob("*.py")
]
# Folders of modules that the map does not name one by one.
BESIDE = {"benchmarks", "build", "cli", "dist", "examples", "kernels", "scripts", "tests"}
# Pages that tell what once was.
HISTORY = {"CHANGELOG.md", "log.md"}
WIDEST = 120
MAX_README_LINES = 110


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """GitHub's names of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    found = []
    for match in LINK.finditer(prose(page)):
        link = match[1] or match[2]
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    if page.name in HISTORY:
        pytest.skip("names what is gone")
    text = re.sub(r"`[^`]*(?:NAME|LIBRARY)[^`]*`", "", prose(page))  # what a recipe asks for
    gone = [name for name in NAMED_PATH.findall(text) if not any(ROOT.glob(name.rstrip("/")))]
    gone += [
        name for name in NAMED_MODULE.findall(text) if not any(f"/{path}".endswith(f"/{name}") for path in MODULES)
    ]
    assert gone == []


def test_the_map_of_the_architecture_equals_the_tree() -> None:
    """Every package, and every file at the top of one; a folder's line comes before those of its files."""
    packages = {*find_packages(str(ROOT)), "integrations.optimum"}  # the latter is none, its files are
    path, drawn, files = list[str](), set(), set()
    for line in (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("\n## ")[1].splitlines():
        if match := re.match(r"((?: {4})+)(\w+)/ ", line):
            path[len(match[1]) // 4 - 1 :] = [match[2]]
            drawn.add(".".join(path))
        elif match := re.match(r"((?: {4})+)\w+\.py", line):
            files |= {"/".join([*path[: len(match[1]) // 4 - 1], name]) for name in re.findall(r"\w+\.py", line)}
    assert drawn == packages
    tops = (file for pattern in ("*.py", "*/*.py") for file in ROOT.glob(pattern) if file.parent.name not in BESIDE)
    assert files == {str(file.relative_to(ROOT)) for file in tops if not file.name.startswith("__")} - {"setup.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_not_too_long(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDEST and not line.startswith("|")] == []


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_README_LINES
    assert [line for line in lines if len(line) > WIDEST] == []


@pytest.mark.parametrize("page", ["cli.md", "http.md"])
def test_a_generated_page_is_up_to_date(page: str) -> None:
    from write_reference import DOCS, PAGES

    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](), "run scripts/write_reference"


def test_an_option_is_described_in_its_command_or_in_common() -> None:
    from specexport.cli import main

    common, *sections = (ROOT / "docs/cli.md").read_text(encoding="utf-8").partition("## Common")[2].split("\n## ")
    for section in sections:
        command = main.commands[section.split("\n")[0].removeprefix("specexport ")]
        for option in command.params:
            name = option.opts[-1]
            if name.startswith("-"):
                named = f"`{name}`" in section.rpartition("(#common-options)")[2] and re.search(f"`{name}[` ]", common)
                assert named or re.search(rf"^\| .*`{name}[` ]", section, re.MULTILINE), (
                    f"run scripts/write_reference: docs/cli.md lacks {name} of {command.name}"
                )


def test_help_that_keeps_its_lines_keeps_them_in_the_docs() -> None:
    from reference_pages.markdown import wrap

    assert "\n    zsh:  eval " in (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert wrap("\b\n  a\n  b") == "    a\n    b"


def table_names(page: str, heading: str) -> set[str]:
    """What stands in backticks in the first column of the table below a heading."""
    part = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", part, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_option_of_a_request_is_described() -> None:
    described = table_names("docs/api.md", "Options of stream and generate")
    assert described == {f.name for f in fields(SamplingParameters)}, "docs/api.md, Options of stream and generate"


def test_every_statistic_is_described() -> None:
    part = (ROOT / "docs/api.md").read_text(encoding="utf-8").split("\n## Statistics\n")[1].split("\n## ")[0]
    assert {f.name for f in fields(Statistics)} <= set(re.findall(r"`(\w+)`", part))


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# A heading: one\n[a](page.md#a-heading-one) [b](page.md#other) [c](gone.md) <img src="x.svg">\n')
    assert broken_links(page) == ["page.md#other", "gone.md", "x.svg"]
