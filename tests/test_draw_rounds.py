"""The picture of rounds: drawn from a real run, and readable by machines."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from draw_rounds import PICTURE, Token, draw, record_rounds
from support.doubles import FakeDecoder, fake_session

SVG = "{http://www.w3.org/2000/svg}"


def test_the_rounds_are_those_of_the_run(tmp_path: Path) -> None:
    session = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    rounds = record_rounds(session, "Hello", 6)
    emitted = [token.text for row in rounds for token in row if token.kind in ("accepted", "target")]
    session.reset()
    tokens = session.generate("Hello", max_new_tokens=len(emitted), stop_token_ids=()).tokens
    assert emitted == [session.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
    kinds = [[token.kind for token in row] for row in rounds]
    assert all(row[-1] == "target" and row.count("rejected") <= 1 for row in kinds)
    assert all(row == sorted(row, key=["accepted", "rejected", "unjudged", "target"].index) for row in kinds)
    assert {kind for row in kinds for kind in row} == {"accepted", "rejected", "unjudged", "target"}


def test_text_is_escaped() -> None:
    drawn = ElementTree.fromstring(draw([[Token("accepted", "<a&b>"), Token("target", '"')]]))
    assert {"<a&b>", '"'} <= {text.text for text in drawn.iter(f"{SVG}text")}


def test_the_committed_picture_is_accessible_and_follows_the_colour_scheme() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    picture = ElementTree.fromstring(text)
    assert picture.get("role") == "img"
    named = {element.get("id") for element in picture if element.tag in (f"{SVG}title", f"{SVG}desc") and element.text}
    assert set((picture.get("aria-labelledby") or "").split()) == named
    assert "prefers-color-scheme: dark" in text
