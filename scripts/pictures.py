"""The pictures of the docs, from real runs: `scripts/pictures chat.bundle demo.bundle`.

Writes docs/pictures/: `rounds.svg`, the animation of rounds; `chat.svg`, a conversation in the terminal; `page.webp`,
the server's page after an answer.

Needs a Chromium (Debian: `apt-get install chromium`), what `make lint` installs, a bundle of a chat model (`make chat`
builds chat.bundle), and the demo bundle (`make demo`).
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from support.browser import Browser

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
LARGEST, ALL = 80_000, 400_000  # limits in bytes: per picture, in total
COMMAND = (sys.executable, "-m", "specexport")
COLUMNS = 92
TURNS = ("Write a Python function that counts the words of a text file.", "Now add type hints and a docstring.")
NEW_TOKENS = 90
SETTLED = b"> "  # the chat's prompt
# Control sequences of terminals other than colours.
CONTROLS = re.compile(r"\x1b\[\?\d+[hl]|\x1b\[[0-9;]*[A-HJKf]|\x07|\x1b\][^\x07]*\x07")
COLOURS = 128


def record_chat(bundle: Path, turns: Sequence[str], columns: int) -> str:
    """The terminal output of a chat, from its first prompt to the last answer."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (60, columns))
    options = ["--temperature", "0", "--max-new-tokens", str(NEW_TOKENS)]
    process = subprocess.Popen(
        [*COMMAND, "chat", str(bundle), *options],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        for line in (*turns, None):
            while not CONTROLS.sub("", shown.decode(errors="ignore")).encode().endswith(SETTLED):
                shown += os.read(ours, 1 << 16)  # an OSError if the chat has ended
            if line is not None:
                os.write(ours, line.encode() + b"\r")
                shown += os.read(ours, 1 << 16)  # the echo, so that it is not mistaken for the next prompt
    finally:
        process.terminate()
        process.wait()
        os.close(ours)
    return CONTROLS.sub("", shown.decode(errors="replace")).replace("\r\n", "\n").removesuffix(SETTLED.decode()).strip()


def draw_terminal(text: str, title: str, columns: int) -> str:
    """An SVG of a terminal that shows `text` with its colours. It loads no other files."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text), soft_wrap=False)
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace(
        "font-family: Fira Code, monospace", "font-family: ui-monospace, SFMono-Regular, Menlo, monospace"
    )
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


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
        browser.type(TURNS[0])
        browser.press_enter()
        browser.wait("document.querySelectorAll('.note').length === 1")
        take(browser, folder / "page.webp", 1180, 720)


def check_sizes(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    for name, size in sizes.items():
        print(f"{folder / name}  {size / 1000:.0f} KB")
    large = [name for name, size in sizes.items() if size > LARGEST]
    if large or sum(sizes.values()) > ALL:
        raise SystemExit(f"too large for the repository: {', '.join(large) or 'all of them together'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chat", type=Path, help="bundle of a chat model")
    parser.add_argument("demo", type=Path, help="the bundle of the demo pair")
    parser.add_argument("--only", choices=["rounds", "chat", "page"], help="write only this one")
    arguments = parser.parse_args()
    wanted = {arguments.only} if arguments.only else {"rounds", "chat", "page"}
    sys.path.insert(0, str(ROOT / "tests"))
    from support.browser import Browser, chromium

    program = chromium()
    if program is None and "page" in wanted:
        raise SystemExit("there is no Chromium; install one: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    if "rounds" in wanted:
        subprocess.run([sys.executable, ROOT / "scripts/draw_rounds.py", arguments.demo], check=True)
    if "chat" in wanted:
        text = record_chat(arguments.chat, TURNS, COLUMNS)
        drawn = draw_terminal(text, f"specexport chat {arguments.chat.name}", COLUMNS)
        (PICTURES / "chat.svg").write_text(drawn, encoding="utf-8")
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
