"""The pictures of the docs, from real runs: `scripts/pictures chat.bundle` (`make chat` builds it).

Writes docs/pictures/: `chat.svg`, recordings of a conversation with and without drafts, for which the host must do
nothing else; `page.webp`, the server's page after an answer, for which a Chromium is needed (Debian: `apt-get install
chromium`) and what `make lint` installs.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from draw_chat import draw_chat
from PIL import Image

if TYPE_CHECKING:
    from support.browser import Browser

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
LARGEST = 200_000  # bytes of a picture
COMMAND = (sys.executable, "-m", "specexport")
QUESTION = "Write a Python function that counts the words of a text file."
COLOURS = 128


@contextmanager
def served(bundle: Path) -> Iterator[int]:
    """Run a server for the bundle; the value is its port."""
    process = subprocess.Popen(
        [*COMMAND, "serve", str(bundle), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["port"])
    finally:
        process.terminate()
        process.wait()


def take(browser: Browser, path: Path, width: int, height: int) -> None:
    """Take a picture of the browser's page, from its top."""
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1.0}
    browser.screen(width, height)
    options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
    png = base64.b64decode(browser.call("Page.captureScreenshot", **options)["data"])
    # Few colours, lossless: half the size of a lossy picture of text, and sharp.
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).convert("RGB").save(
        path, lossless=True, quality=100, method=6
    )


def take_page(browser: Browser, bundle: Path, folder: Path) -> None:
    with served(bundle) as port:
        browser.screen(1180, 720)
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait("document.getElementById('model').textContent.includes('·')")
        browser.click("#prompt")
        browser.type(QUESTION)
        browser.press_enter()
        browser.wait("document.querySelectorAll('.note').length === 1")
        take(browser, folder / "page.webp", 1180, 720)


def check_sizes(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    for name, size in sizes.items():
        print(f"{folder / name}  {size / 1000:.0f} KB")
    if large := [name for name, size in sizes.items() if size > LARGEST]:
        raise SystemExit(f"too large for the repository: {', '.join(large)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chat", type=Path, help="bundle of a chat model")
    parser.add_argument("--only", choices=["chat", "page"], help="write only this one")
    arguments = parser.parse_args()
    wanted = {arguments.only} if arguments.only else {"chat", "page"}
    sys.path.insert(0, str(ROOT / "tests"))
    from support.browser import Browser, chromium

    program = chromium()
    if program is None and "page" in wanted:
        raise SystemExit("there is no Chromium; install one: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    if "chat" in wanted:
        (PICTURES / "chat.svg").write_text(draw_chat(arguments.chat), encoding="utf-8")
    if "page" in wanted:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = Browser(str(program), Path(profile))
            try:
                take_page(browser, arguments.chat, PICTURES)
            finally:
                browser.close()
    check_sizes(PICTURES)


if __name__ == "__main__":
    main()
