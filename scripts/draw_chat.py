"""The moving picture of the README: `specexport chat` beside the same chat with `--plain`, recorded in a terminal.

Both are recorded several times, in turns, and the fastest of each is drawn, in slow motion. What is shown, and when, is
what the terminal got. The picture loops; with reduced motion its end is shown.
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

PROGRAM = (sys.executable, "-m", "specexport", "chat")
# Before the conversation that is drawn: the first request of a bundle measures its costs.
WARM_UP = ("Name three colours.", "/reset")
TURNS = ("Write a Python class for a bank account with deposit and withdraw.", "Now add type hints and docstrings.")
NEW_TOKENS = 224
TAKES = 5
PROMPT = "\n> "
# Control sequences of terminals other than colours, and colours.
CONTROLS = re.compile(r"\x1b\[\?\d+[hl]|\x1b\[[0-9;]*[A-HJKf]|\x07|\x1b\][^\x07]*\x07|\r")
COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
STYLES = {"32": "drafted", "2": "quiet"}

SLOWER, HOLD, TICK = 4, 5.0, 0.1  # times; seconds at the end; seconds of a run between two readings of its clock
COLUMNS, ROWS = 54, 24
CHARACTER, ROW = 7.0, 15  # px
WIDTH, MARGIN, TOP = 812, 14, 62
PANE = COLUMNS * CHARACTER
STYLE = """
text { font: 11.6px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
.page { fill: #ffffff } .pane { fill: #f6f8fa } text.quiet { fill: #59636e } text.drafted { fill: #1a7f37 }
text.title { font-weight: 600; font-size: 13px } .clock { opacity: 0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .page { fill: #0d1117 } .pane { fill: #151b23 } text.quiet { fill: #9198a1 }
  text.drafted { fill: #3fb950 }
}
"""


@dataclass(frozen=True)
class Letter:
    text: str
    style: str  # "" or one of `STYLES`
    at: float  # seconds after the first question was sent


def record(bundle: Path, *options: str) -> list[Letter]:
    """What the terminal shows of a conversation, from its first question to its last answer, without its prompt."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (60, 200))
    process = subprocess.Popen(
        [*PROGRAM, str(bundle), "--temperature", "0", "--max-new-tokens", str(NEW_TOKENS), *options],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")()
    shown, times, start = "", list[float](), 0.0

    def read() -> None:
        nonlocal shown
        shown += decoder.decode(os.read(ours, 1 << 16))  # an OSError if the chat has ended
        times.extend([time.perf_counter()] * (len(shown) - len(times)))

    def wait(begin: int) -> None:
        while not CONTROLS.sub("", shown[begin:]).endswith(PROMPT):
            read()

    try:
        wait(0)
        for line in (*WARM_UP, *TURNS):
            if line == TURNS[0]:
                shown, times, start = "", [], time.perf_counter()
            begin = len(shown)
            os.write(ours, line.encode() + b"\r")
            wait(begin)
    finally:
        process.terminate()
        process.wait()
        os.close(ours)
    return list(letters("> " + shown, [0.0, 0.0] + [at - start for at in times]))[: -len(PROMPT)]


def letters(shown: str, times: list[float]) -> Iterator[Letter]:
    style, place = "", 0
    for found in (*re.finditer(f"{CONTROLS.pattern}|{COLOUR.pattern}", shown), None):
        end = len(shown) if found is None else found.start()
        for index in range(place, end):
            yield Letter(shown[index], style, times[index])
        if found is not None:
            place = found.end()
            if found[0].endswith("m"):
                style = STYLES.get(found[1], "")


def text_of(shown: list[Letter]) -> str:
    """The conversation alone, without what the chat says of it."""
    return "".join(letter.text for letter in shown if letter.style != "quiet")


def lines(shown: list[Letter]) -> list[list[Letter]]:
    """As rows of the picture, broken at spaces where they fit in no row."""
    rows: list[list[Letter]] = [[]]
    for letter in shown:
        if letter.text == "\n":
            rows.append([])
            continue
        rows[-1].append(letter)
        if len(rows[-1]) > COLUMNS:
            spaces = [place for place, one in enumerate(rows[-1][:-1]) if one.text == " " and place > COLUMNS // 2]
            cut = spaces[-1] + 1 if spaces else COLUMNS
            rows.append(rows[-1][cut:])
            del rows[-2][cut:]
    return rows


class Film:
    """The keyframes of one loop, in which `seconds` of a recording take `SLOWER` times as long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds * SLOWER + HOLD
        self.frames: list[str] = []

    def frame(self, *changes: tuple[float, str]) -> str:
        """The style of an element that changes at these seconds of the recording."""
        steps = "".join(f"{100 * SLOWER * at / self.seconds:.2f}%{{{style}}}" for at, style in changes)
        if steps not in self.frames:
            self.frames.append(steps)
        return f'style="animation-name:a{self.frames.index(steps)}"'

    def css(self) -> str:
        names = "".join(f"@keyframes a{index}{{{steps}}}\n" for index, steps in enumerate(self.frames))
        return (
            f"g[style] {{ animation: {self.seconds:.1f}s step-end infinite }}\n"
            f"@media (prefers-reduced-motion: reduce) {{ g[style] {{ animation: none }} }}\n{names}"
        )


def pane(shown: list[Letter], title: str, left: float, film: Film) -> Iterator[str]:
    """One terminal: its title, its clock, and its rows, which move up as it fills."""
    yield f'<text class="title" x="{left:.0f}" y="26">{title}</text>'
    end = shown[-1].at
    ticks = [TICK * number for number in range(int(end / TICK) + 1)]
    clock = f'x="{left + PANE:.0f}" y="26" text-anchor="end" class="title"'
    for at in ticks:
        style = film.frame((0, "opacity:0"), (at, "opacity:1"), (min(at + TICK, end), "opacity:0"))
        yield f'<g class="clock" {style}><text {clock}>{at:.1f} s</text></g>'
    yield f"<g {film.frame((0, 'opacity:0'), (end, 'opacity:1'))}><text {clock}>{end:.2f} s</text></g>"
    yield f'<rect class="pane" x="{left - 8:.0f}" y="38" width="{PANE + 16:.0f}" height="{ROWS * ROW + 16}" rx="6"/>'
    rows = lines(shown)
    hidden = max(len(rows) - ROWS, 0)
    moves = [(0.0, f"transform:translateY({hidden * ROW}px)")]
    moves += [
        (row[0].at, f"transform:translateY({(hidden - number) * ROW}px)")
        for number, row in enumerate(rows[ROWS:], 1)
        if row
    ]
    yield f'<svg x="{left:.0f}" y="45" width="{PANE + 4:.0f}" height="{ROWS * ROW + 4}">'
    yield f'<g transform="translate(0 {-hidden * ROW})"><g {film.frame(*moves)}>'
    for number, row in enumerate(rows):
        column = 0
        for (at, style), group in groupby(row, key=lambda letter: (round(letter.at, 2), letter.style)):
            text = "".join(letter.text for letter in group)
            width = len(text)
            if text.strip():
                indent = width - len(text.lstrip())
                kind = f' class="{style}"' if style else ""
                place = f'x="{(column + indent) * CHARACTER:.0f}" y="{number * ROW + 11}"'
                length = f'textLength="{len(text.strip()) * CHARACTER:.0f}"'
                drawn = f"<text{kind} {place} {length}>{escape(text.strip(), quote=False)}</text>"
                yield f"<g {film.frame((0, 'opacity:0'), (at, 'opacity:1'))}>{drawn}</g>"
            column += width
    yield "</g></g></svg>"


def draw(plain: list[Letter], drafted: list[Letter]) -> str:
    film = Film(max(plain[-1].at, drafted[-1].at))
    height = TOP + ROWS * ROW + 34
    panes = [
        *pane(plain, "plain decoding", MARGIN, film),
        *pane(drafted, "specexport, drafted tokens green", WIDTH - MARGIN - PANE, film),
    ]
    label = (
        f"The same conversation takes {plain[-1].at:.2f} s with plain decoding and {drafted[-1].at:.2f} s with drafts"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">',
            "<!-- Made by scripts/pictures from recordings of specexport chat. -->",
            f"<style>{STYLE}{film.css()}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
            *panes,
            f'<text class="quiet" x="{MARGIN}" y="{height - 14}">Two recordings, {SLOWER} times slower than they ran. '
            "Both answers are the same text.</text>",
            "</svg>\n",
        ]
    )


def draw_chat(bundle: Path) -> str:
    takes = [(record(bundle, "--plain"), record(bundle)) for _ in range(TAKES)]
    if len({text_of(take) for pair in takes for take in pair}) != 1:
        raise SystemExit("the answers differ; a bundle with the CPU kernels gives the same with and without drafts")
    plain, drafted = (min(kind, key=lambda take: take[-1].at) for kind in zip(*takes, strict=True))
    print(f"plain {plain[-1].at:.2f} s, with drafts {drafted[-1].at:.2f} s, the fastest of {TAKES} each")
    return draw(plain, drafted)
