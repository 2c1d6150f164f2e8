"""Writes the pages that follow from the code, docs/cli.md and docs/http.md. A test fails if one is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from reference_pages import cli_page, http_page  # type: ignore[import-not-found]  # this file's folder is on the path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = {"cli.md": cli_page.render, "http.md": http_page.render}

if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit(f"write_reference takes no arguments; {__doc__}")
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
        print(DOCS / name)
