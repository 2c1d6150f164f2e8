"""An animation of speculative decoding from a real run, one row per round: `scripts/draw_rounds demo.bundle`.

Greedy, on a held-out prompt. The same bundle gives the same picture every time. The animation plays once; with reduced
motion, or in a viewer without animations, its end is shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import specexport
from specexport.calibration.measuring.record import Recorder
from specexport.engines.base import Logits
from specexport.runtime.drafting.rounds import RoundPlan, SequenceState

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ROOT / "examples/prompts/code.jsonl"
PICTURE = ROOT / "docs/pictures/rounds.svg"
# The first 8 rounds of this prompt yield 3.1 tokens each, the route's mean; others repeat themselves, or end early.
TYPICAL = 10

CHARACTER, PADDING, GAP = 8.0, 12, 6  # px
LEFT, TOP, ROW, BOX = 86, 74, 36, 26
WIDTH = 760
BEGIN, EACH, VERIFY, PAUSE = 0.5, 0.14, 0.3, 0.45  # seconds: at first, per draft token, pass, round
STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
.page { fill: #ffffff } .quiet { fill: #59636e } .title { font-weight: 600 }
rect.accepted { fill: #dafbe1; stroke: #1a7f37 } rect.target { fill: #ddf4ff; stroke: #0969da }
rect.rejected { fill: #ffebe9; stroke: #d1242f } rect.unjudged { fill: none; stroke: #818b98; stroke-dasharray: 3 3 }
line { stroke: #d1242f } .show { animation: show .2s backwards } @keyframes show { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { .show { animation: none } }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .page { fill: #0d1117 } .quiet { fill: #9198a1 } line { stroke: #f85149 }
  rect.accepted { fill: #12261e; stroke: #3fb950 } rect.target { fill: #121d2f; stroke: #4493f8 }
  rect.rejected { fill: #25171c; stroke: #f85149 } rect.unjudged { stroke: #656c76 }
}"""
LEGEND = (
    ("accepted", "draft, accepted"),
    ("rejected", "draft, rejected"),
    ("unjudged", "after a rejected one"),
    ("target", "the target's own token"),
)


@dataclass
class Watcher(Recorder):
    """Records the draft tokens of every greedy round."""

    drafts: list[list[int]] = field(default_factory=list)

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self.drafts.append([])
        return super().plan(sequence)

    def include(self, index: int, logits: Logits) -> bool:
        self.drafts[-1].append(int(logits[-1].argmax()))
        return super().include(index, logits)


@dataclass(frozen=True)
class Token:
    kind: str  # of `LEGEND`
    text: str


def record_rounds(session: specexport.Session, prompt: str, count: int) -> list[list[Token]]:
    """Each round's tokens, in the order of the text: the draft's, then the one that the target adds."""
    watcher = Watcher(session.max_draft_tokens, None)
    found: list[list[Token]] = []

    def token(kind: str, number: int) -> Token:
        return Token(
            kind, session.tokenizer.decode([number], skip_special_tokens=False).replace("\n", "↵").replace(" ", "·")
        )

    for chunk in session.stream(prompt, schedule=watcher, stop_token_ids=()):
        draft, accepted = watcher.drafts[len(found)], len(chunk.tokens) - 1
        kinds = ["accepted"] * accepted + ["rejected"] + ["unjudged"] * len(draft)
        row = [token(kind, number) for kind, number in zip(kinds, draft, strict=False)]
        found.append([*row, token("target", chunk.tokens[-1])])
        if len(found) == count:
            break
    return found


def shown(at: float, drawn: str) -> str:
    """`drawn`, which appears `at` seconds after the start."""
    return f'<g class="show" style="animation-delay:{at:.2f}s">{drawn}</g>'


def box(x: float, y: float, token: Token, at: float, judged: float) -> tuple[str, float]:
    """The elements and the width of one token. at, judged: seconds until it appears, and until it gets its colour."""
    width = len(token.text) * CHARACTER + PADDING

    def rect(kind: str) -> str:
        return f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="5"/>'

    drawn = shown(at, rect("unjudged"))
    if token.kind != "unjudged":
        drawn += shown(judged, rect(token.kind))
    drawn += shown(
        at, f'<text x="{x + width / 2:.0f}" y="{y + 18:.0f}" text-anchor="middle">{escape(token.text)}</text>'
    )
    if token.kind == "rejected":
        middle = y + BOX / 2
        drawn += shown(judged, f'<line x1="{x + 5:.0f}" x2="{x + width - 5:.0f}" y1="{middle}" y2="{middle}"/>')
    return drawn, width


def elements(rounds: list[list[Token]]) -> Iterator[str]:
    emitted = sum(token.kind in ("accepted", "target") for row in rounds for token in row)
    title = f"{emitted} tokens in {len(rounds)} passes of the target; plain decoding takes {emitted}"
    yield f'<text class="title" x="20" y="30">{title}</text>'
    x = 20.0
    for kind, label in LEGEND:
        yield f'<rect class="{kind}" x="{x:.0f}" y="44" width="14" height="14" rx="3"/>'
        yield f'<text class="quiet" x="{x + 20:.0f}" y="56">{label}</text>'
        x += 20 + len(label) * CHARACTER + 24
    at = BEGIN
    for index, row in enumerate(rounds):
        x, y = float(LEFT), TOP + index * ROW
        yield shown(at, f'<text class="quiet" x="20" y="{y + 18}">round {index + 1}</text>')
        judged = at + len(row) * EACH + VERIFY
        for place, token in enumerate(row):
            drawn, width = box(x, y, token, judged if token.kind == "target" else at + place * EACH, judged)
            yield drawn
            x += width + GAP
        accepted = sum(token.kind == "accepted" for token in row)
        label = f"{accepted} of {len(row) - 1} accepted"
        yield shown(judged, f'<text class="quiet" x="{WIDTH - 20}" y="{y + 18}" text-anchor="end">{label}</text>')
        at = judged + PAUSE


def draw(rounds: list[list[Token]]) -> str:
    height = TOP + len(rounds) * ROW + 10
    accepted = ", ".join(str(sum(token.kind == "accepted" for token in row)) for row in rounds)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'aria-labelledby="title description">',
            "<!-- Made by scripts/draw_rounds from a real run. -->",
            '<title id="title">Rounds of speculative decoding</title>',
            f'<desc id="description">{len(rounds)} rounds of a greedy run of the demo pair. In each round the draft '
            f"proposes up to {max(len(row) for row in rounds) - 1} tokens; the target checks them in one pass and adds "
            f"one token of its own. Accepted by round: {accepted}.</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
            *elements(rounds),
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--prompt", type=int, default=TYPICAL, help=f"line of {PROMPTS.name}, from 0")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    prompt = json.loads(PROMPTS.read_text(encoding="utf-8").splitlines()[arguments.prompt])["prompt"]
    with specexport.load(arguments.bundle) as session:
        rounds = record_rounds(session, prompt, arguments.rounds)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(rounds), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
