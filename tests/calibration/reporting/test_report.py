from __future__ import annotations

import builtins
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from specexport.calibration.reporting.figures import figures
from specexport.calibration.reporting.report import write_report
from specexport.calibration.reporting.sections import NO_SIGNALS, TITLES, sections
from specexport.calibration.reporting.summary import render
from specexport.calibration.statistics.results import Analysis, Interval
from specexport.calibration.statistics.sample_size import what_samples_tell
from specexport.calibration.survival.fit import MIN_TOKENS
from specexport.errors import MissingPackageError, OutputError
from support import analyses
from support.analyses import SCRIPT
from support.refusals import refused

VOID = {"meta", "br", "hr", "img", "input", "link"}
# A whole analysis drawn once.
ANALYSIS = analyses.analysis()


class Page(HTMLParser):
    """Elements with their attributes, ids, and texts by the id of the section; raises where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.cells: dict[str, list[list[str]]] = {}
        self.texts: dict[str, list[str]] = {}
        self.section = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag == "tr":
            self.cells.setdefault(self.section, []).append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.section, []).append(data)
        if "td" in self.open or "th" in self.open:
            self.cells[self.section][-1].append(data)

    def text(self, section: str) -> str:
        return " ".join(" ".join(self.texts[section]).split())


def written(analysis: Analysis, folder: Path) -> str:
    write_report(analysis, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(ANALYSIS, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_sections_in_the_order_of_a_reader_who_has_a_minute(page: Page) -> None:
    found = [value for tag, name, value in page.attributes if (tag, name) == ("section", "id")]
    assert found == ["verdicts", "figures", *list(TITLES)[1:]]
    assert found[-1] == "provenance"


def test_every_figure_is_on_the_page(page: Page) -> None:
    images = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    assert images == [figure.image for figure in figures(ANALYSIS)]


def test_nothing_is_loaded_from_anywhere(html: str, page: Page) -> None:
    assert not {"script", "link", "iframe", "image", "object", "embed", "base", "svg"} & set(page.tags)
    for _, name, value in page.attributes:
        assert name not in ("srcset", "action", "data", "href")
        assert not name.startswith("on")
        assert value.startswith("data:image/svg+xml;base64,") if name == "src" else "//" not in value
    assert "@import" not in html
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_names_are_text_and_nothing_else(html: str, page: Page) -> None:
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 10
    assert "chat &amp; prose" in html
    assert SCRIPT in page.text("distribution")


def test_words_that_would_end_an_attribute_or_make_a_formula(tmp_path: Path) -> None:
    name = "$\\frac{1}$ \"'><b onload=x>{{ 7*7 }} #010101 \x1b[31m \ud800 \u202e"
    entry = analyses.route(name, "on", 0.5, k_max=2, drafters=("ngram",))
    entry = replace(entry, words=name)
    page = Page(written(analyses.analysis([entry], k_max=2), tmp_path))
    assert "b" not in {tag for tag, attribute, _ in page.attributes if attribute == "onload"}
    shown = "$\\frac{1}$ \"'><b onload=x>{{ 7*7 }} #010101 \ufffd[31m \ufffd \ufffd"
    assert shown in page.text("verdicts")
    assert shown in page.text("speedups")


def test_the_same_words_and_numbers_as_the_terminal(page: Page) -> None:
    terminal = render(ANALYSIS)
    for section in sections(ANALYSIS):
        cells = [[cell for cell in row if cell.strip()] for row in page.cells.get(section.key, [])]
        for table in section.tables:
            for row in table.rows:
                assert [cell for cell in row if cell] in cells
        for one in section.decided:
            assert f"{one.verdict} {one.route} {one.words} {one.speedup}" in page.text(section.key)
            assert f"{one.verdict} {one.route}: {one.words}" in " ".join(terminal.split())
    assert [row[0] for row in page.cells["verdicts"]] == ["verdict", "ON", "UNDECIDED", "OFF"]


@pytest.mark.parametrize(
    "key", ["verdicts", "acceptance", "speedups", "distribution", "lengths", "predicted", "latency"]
)
def test_every_route_stands_in_every_table(key: str) -> None:
    (section,) = (one for one in sections(ANALYSIS) if one.key == key)
    for table in section.tables:
        cells = {cell for row in table.rows for cell in row}
        assert {route.route for route in ANALYSIS.routes} <= cells


def test_the_same_analysis_gives_the_same_bytes(tmp_path: Path) -> None:
    analysis = analyses.analysis([analyses.route("one", "off", 0.1, k_max=1)], k_max=1)
    assert written(analysis, tmp_path) == written(analysis, tmp_path)


def test_without_a_draft_model(tmp_path: Path) -> None:
    page = Page(written(analyses.lookups_only(), tmp_path))
    assert " ".join(NO_SIGNALS.format(least_tokens=MIN_TOKENS).split()) in page.text("signals")
    assert "draft none" in page.text("costs")


@pytest.mark.parametrize("k_max", [1, 16])
def test_any_number_of_draft_tokens(k_max: int, tmp_path: Path) -> None:
    entry = analyses.route("one", "on", 0.7, k_max=k_max)
    page = Page(written(analyses.analysis([entry], k_max=k_max), tmp_path))
    assert page.cells["acceptance"][0][-1] == f"token {k_max}"


def test_one_request_and_numbers_that_are_none(tmp_path: Path) -> None:
    entry = analyses.route("one", "undecided", 0.5, requests=1, k_max=1, drafters=("ngram",))
    unknown = Interval(1.2, -math.inf, math.inf)
    chosen = replace(entry.chosen, speedup=unknown, p10=math.nan, slower=math.nan)
    measured = replace(entry.measured, speedup=Interval(0.0, math.nan, math.nan), speedups=())
    entry = replace(entry, chosen=chosen, candidates=(chosen,), speedups=(), measured=measured, buckets=())
    page = Page(written(analyses.analysis([entry], k_max=1), tmp_path))
    assert what_samples_tell(0) in page.text("verdicts")
    for section in page.texts:
        assert not {"nan", "inf", "nanx", "infx"} & set(page.text(section).split())
    assert page.cells["verdicts"][1][-6:] == ["1.20x", "unknown", "-", "-", "0 of 1", "137"]


def test_a_write_that_fails_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "report.html"
    place.write_text("old", encoding="utf-8")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with refused(OutputError):
        write_report(analyses.lookups_only(), place)
    assert place.read_text(encoding="utf-8") == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with refused(OutputError, "directory"):
        write_report(analyses.lookups_only(), tmp_path / "missing" / "report.html")


def test_the_file_is_as_readable_as_others(tmp_path: Path) -> None:
    written(analyses.lookups_only(), tmp_path)
    (tmp_path / "other").touch()
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **others: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return imported(name, *arguments, **others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with refused(MissingPackageError, "specexport[calibrate]"):
        write_report(ANALYSIS, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
