"""The report in a headless Chromium: on a phone nothing but tables scrolls sideways."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.calibration.reporting.report import write_report
from support import analyses
from support.browser import Browser, chromium

PROGRAM = chromium()
OVERFLOWING = """[...document.querySelectorAll("body *")].filter(element =>
    element.getBoundingClientRect().right > 360 && !element.closest(".scroll")
).map(element => element.tagName)"""


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")
def test_the_page_fits_a_phone(tmp_path: Path) -> None:
    assert PROGRAM is not None
    routes = [
        analyses.route("a_route_whose_name_has_no_place_to_break" * 3, "on", 0.8),
        analyses.route("b", "off", 0.1),
    ]
    write_report(analyses.analysis(routes), tmp_path / "report.html")
    browser = Browser(PROGRAM, tmp_path / "profile")
    try:
        browser.screen(360, 800, dark=True)
        browser.open((tmp_path / "report.html").as_uri())
        browser.evaluate("document.querySelectorAll('details').forEach(element => { element.open = true })")
        assert browser.evaluate("document.documentElement.scrollWidth") == 360
        assert browser.evaluate(OVERFLOWING) == []
        assert browser.troubles == []
    finally:
        browser.close()
