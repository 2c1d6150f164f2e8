"""axe-core on the server's page, in each of its states: `python scripts/page_check.py chat.bundle --axe axe.min.js`.

Prints a row per state, screen and colour scheme: what axe-core finds, and how high the conversation is in CSS pixels.
Exits with 1 if axe-core finds anything.

Needs a Chromium (Debian: `apt-get install chromium`), what `make lint` installs, a bundle of a chat model (`make
chat`), and axe-core: `npm pack axe-core && tar xzf axe-core-*.tgz package/axe.min.js`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.browser import Browser

ROOT = Path(__file__).resolve().parent.parent
KEY = "secret"
SCREENS = {"desktop": (1280, 800), "zoom 200 %": (640, 400), "phone": (390, 844), "phone, keyboard": (390, 420)}
AXE = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
FOUND = f"{AXE}.then((all) => all.violations.map((one) => `${{one.id}}: ${{one.nodes.map((node) => node.target)}}`))"
TROUBLE = "document.getElementById('trouble').textContent.includes({!r})"


def states(browser: Browser, port: int) -> Iterator[str]:
    """Goes from state to state, as somebody would who has a key, and yields each one's name."""
    browser.open(f"http://127.0.0.1:{port}/")
    browser.wait(TROUBLE.format("needs an API key"))
    yield "no key"
    browser.type("wrong")
    browser.press_enter()
    browser.wait(TROUBLE.format("not accept"))
    yield "wrong key"
    browser.evaluate("document.getElementById('key').value = ''")
    browser.type(KEY)
    browser.press_enter()
    browser.wait("document.getElementById('model').textContent.includes('·')")
    yield "start"
    browser.evaluate("document.getElementById('max-tokens').value = 400")
    browser.type("Write a Python function that counts the words of a text file, and one for its lines.")
    browser.press_enter()
    browser.wait("document.querySelector('.text .token') !== null")
    yield "answering"
    browser.wait("document.querySelector('.note') !== null")
    yield "answered"
    browser.click("#show-rejected")
    yield "guesses shown"
    browser.evaluate("document.getElementById('schema').value = '{'")
    browser.click("#prompt")
    browser.type("a shirt")
    browser.press_enter()
    browser.wait(TROUBLE.format("not JSON"))
    yield "error"
    browser.evaluate("document.getElementById('settings').open = true")
    yield "settings"


def check(browser: Browser, port: int, axe: str, pictures: Path | None) -> int:
    """Prints the table. Returns the number of rows with findings."""
    faults = 0
    print(f"{'screen':16} {'scheme':6} {'state':14} {'height':>6}  axe-core")
    for screen, (width, height) in SCREENS.items():
        for scheme in ("light", "dark"):
            browser.screen(width, height, scheme == "dark")
            for state in states(browser, port):
                if not browser.evaluate("'axe' in window"):
                    browser.evaluate(axe + "; 0")
                if state == "answering" and not browser.evaluate("document.getElementById('send').hidden"):
                    raise SystemExit("the answer ended before it could be looked at: take a slower model")
                found = browser.evaluate(FOUND)
                room = browser.evaluate("document.getElementById('log').clientHeight")
                print(f"{screen:16} {scheme:6} {state:14} {room:6}  {'; '.join(found) or 'nothing'}", flush=True)
                faults += bool(found)
                if pictures:
                    browser.screenshot(pictures / f"{screen} {scheme} {state}.png".replace(" ", "-").replace(",", ""))
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle of a chat model")
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js of axe-core")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="write a picture of each state there")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from support.browser import Browser, chromium
    from support.serving import ServerProcess

    program = chromium()
    if program is None:
        raise SystemExit("there is no Chromium; install one: apt-get install chromium")
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    axe = arguments.axe.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log, env = Path(folder, "log"), {"SPECEXPORT_API_KEY": KEY}
        with ServerProcess(arguments.bundle, log, "--threads", "1", env=env) as server:
            browser = Browser(str(program), Path(folder, "profile"))
            try:
                faults = check(browser, server.port, axe, arguments.pictures)
            finally:
                browser.close()
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
