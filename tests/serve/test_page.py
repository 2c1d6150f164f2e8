"""The page at `/`, as far as no browser is needed: what is served, and what its files hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.serve import ServerSettings
from support.serving import Client, served, slow_session

CONTRACT = Contract(capacity=1024, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
ROOT = Path(__file__).resolve().parents[2]
FILES = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "serve" / "page").iterdir()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
SVG = "http://www.w3.org/2000/svg"  # a name, which nobody fetches


def check_headers(headers: dict[str, str], kind: str) -> None:
    assert headers["content-type"].startswith(kind)
    assert headers["cache-control"] == "no-cache"
    assert headers["x-content-type-options"] == "nosniff"
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]


def test_it_is_served(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    with served(session, ServerSettings(api_keys=("secret",))) as client:  # the page itself needs no key
        status, headers, body = client.ask("GET", "/")
        assert (status, body.decode()) == (200, FILES["index.html"])
        check_headers(headers, "text/html")
        for name, kind in (("app.js", "text/javascript"), ("app.css", "text/css"), ("icon.svg", "image/svg+xml")):
            status, headers, body = client.ask("GET", f"/page/{name}")
            assert (status, body.decode()) == (200, FILES[name])
            check_headers(headers, kind)
        check_kept(client)
        for name in ("..%2fapp.py", "../app.py", "nothing.js", "app.py"):
            assert client.ask("GET", f"/page/{name}")[0] in (401, 404)
        assert client.ask("POST", "/", {})[0] == 405
        assert client.ask("GET", "/v1/models")[0] == 401


def check_kept(client: Client) -> None:
    """A browser that has a file asks whether it changed, and gets no second copy."""
    tag = client.ask("GET", "/page/app.js")[1]["etag"]
    status, headers, body = client.ask("GET", "/page/app.js", headers={"If-None-Match": tag})
    assert (status, headers["etag"], body) == (304, tag, b"")
    assert client.ask("GET", "/page/app.css", headers={"If-None-Match": tag})[0] == 200
    status, headers, body = client.ask("HEAD", "/page/app.js")
    assert (status, int(headers["content-length"]), body) == (200, len(FILES["app.js"].encode()), b"")


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    text = FILES[name].replace(SVG, "")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"// .*", "", text))


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_texts_stay_texts_and_keys_stay_in_memory(name: str) -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\b"
    assert not re.search(ways + r"|Function\(|localStorage|sessionStorage|indexedDB|cookie", SCRIPTS[name])


def test_scripts_find_what_they_name() -> None:
    ids = re.findall(r'\bid="([^"]+)"', FILES["index.html"])
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:byId|show)\("([^"]+)"', "".join(SCRIPTS.values()))
    assert used
    assert set(used) <= set(ids)


def test_the_prompt_is_reached_first() -> None:
    html = FILES["index.html"]
    body = html[html.index("<body>") :]
    assert re.search(r'<body>\s*<a href="#prompt"', body)  # the skip link
    assert re.search(r'<textarea id="prompt"[^>]* autofocus>', body)
    assert not re.search(r'tabindex="[1-9]', body)
    before, _, after = body.partition('id="prompt"')
    assert re.findall(r'\bid="(?:settings|knobs|key|schema|drafter)"', before) == []
    assert 'id="settings"' in after


def test_everything_is_in_a_landmark() -> None:
    outline = re.findall(r"<(/?)(header|main|form|section|details)\b([^>]*)>", FILES["index.html"])
    depth = 0
    for end, name, attributes in outline:
        assert "role=" not in attributes, "a landmark keeps its own role"
        if name in ("form", "section"):
            assert end or "aria-label=" in attributes, name
            assert depth == 1
        depth += (-1 if end else 1) * (name == "main")
    assert [name for end, name, _ in outline if not end][:2] == ["header", "main"]
    assert len(re.findall(r'<div [^>]*role="log"[^>]*aria-label=[^>]*tabindex="0"', FILES["index.html"])) == 1


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", FILES["app.css"], re.DOTALL)
    assert len(blocks) == 2
    colour = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", blocks[scheme]))
    texts = [(ink, on) for ink in ("ink", "quiet", "wrong") for on in ("ground", "card")]
    texts += [("ink", on) for on in ("said", "model", "lookup", "prediction", "grammar")]
    texts += [("on-accent", "accent"), ("accent", "card")]
    for ink, on in texts:
        assert contrast(colour[ink], colour[on]) >= 4.5, (ink, on)
    lines = [f"{source}-line" for source in ("model", "lookup", "prediction", "grammar")]
    for line in (*lines, "edge", "accent"):
        for on in ("ground", "card"):
            assert contrast(colour[line], colour[on]) >= 3, (line, on)
    assert "opacity: ." not in FILES["app.css"]  # it would lower them


def test_what_can_be_changed_has_a_label() -> None:
    html = FILES["index.html"]
    labels = re.findall(r"<label.*?</label>", html, re.DOTALL)
    labelled = set(re.findall(r'(?:\bid|for)="([^"]+)"', "".join(labels)))
    controls = re.findall(r'<(?:input|select|textarea)[^>]*\bid="([^"]+)"', html)
    assert controls
    assert set(controls) <= labelled


def test_nothing_empty_takes_room_at_the_start() -> None:
    for tag in re.findall(r'<\w+ [^>]*id="(?:figures|legend|stop)"[^>]*>', FILES["index.html"]):
        assert tag.endswith(" hidden>"), tag
    assert not re.search(r'id="show-rejected"[^>]* checked', FILES["index.html"])
    assert "body:not(.show-rejected) .text .rejected { display: none; }" in FILES["app.css"]
