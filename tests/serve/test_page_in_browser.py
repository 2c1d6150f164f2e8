"""The page at `/` in a headless Chromium: somebody types, sends, reads and stops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.serve import ServerSettings
from support.browser import Browser, chromium
from support.doubles import fake_session
from support.serving import Client, ServerProcess, SlowDecoder, served, slow_session, wait_for

CONTRACT = Contract(capacity=1024, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
PROGRAM = chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed"),
    pytest.mark.parametrize("server", ["tiny"], indirect=True),
]
READY = "document.getElementById('model').textContent.includes('·')"
ANSWERED = "document.querySelectorAll('.note').length === {}"
TROUBLE = "document.getElementById('trouble').textContent"
FOCUS = "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
ASKED = "document.getElementById('prompt').value"
# One round of one token, as the server sends it; then what `AFTER` does to the stream.
ROUND = {"choices": [{"delta": {"content": "one"}}], "specexport": {"round": 0, "drafted": [], "pieces": ["one"]}}
FAKED = """window.fetch = async () => new Response(new ReadableStream({ start(stream) {
    const send = (data) => stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(data)}\\n\\n`));
    send(ROUND);
    setTimeout(() => { AFTER; }, 10);
} }))"""
# What the model wrote: the last answer without the guesses that were wrong.
TEXT = """(() => {
    const text = [...document.querySelectorAll('.assistant .text')].at(-1).cloneNode(true);
    text.querySelectorAll('.rejected').forEach(element => element.remove());
    return text.textContent;
})()"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    browser = Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chrome: Browser) -> Browser:
    chrome.troubles.clear()
    chrome.screen(1280, 800)
    return chrome


def visit(browser: Browser, client: Client) -> None:
    browser.open(f"http://127.0.0.1:{client.port}/")
    browser.wait(READY)


def visit_keyed(browser: Browser, client: Client) -> None:
    browser.open(f"http://127.0.0.1:{client.port}/")
    browser.wait(f"{TROUBLE}.includes('needs an API key')")


def give_key(browser: Browser, key: str) -> None:
    browser.evaluate("document.getElementById('key').value = ''")
    browser.click("#key")
    browser.type(key)
    browser.press_enter()


def say(browser: Browser, text: str) -> None:
    browser.click("#prompt")
    browser.type(text)
    browser.press_enter()


def choose(browser: Browser, name: str, value: str) -> None:
    browser.evaluate(f"document.getElementById('{name}').value = '{value}'")


def figures(browser: Browser, place: int) -> tuple[int, int, int, int]:
    """(tokens, rounds, right, guesses) under an answer."""
    note = browser.evaluate(f"document.querySelectorAll('.note')[{place}].textContent")
    found = re.match(r"(\d+) tokens in (\d+) rounds .* (\d+) of (\d+) guesses right", note)
    assert found, note
    tokens, rounds, right, guesses = map(int, found.groups())
    return tokens, rounds, right, guesses


def test_a_conversation(browser: Browser, server: ServerProcess) -> None:
    visit(browser, server)
    choose(browser, "max-tokens", "60")
    choose(browser, "draft-tokens", "2")  # what a session chooses changes with what it learns
    browser.click("#prompt")
    browser.type("the quick brown fox")
    browser.click("#send")
    browser.wait(ANSWERED.format(1))
    fixed = {"num_draft_tokens": 2}
    turn = {"role": "user", "content": "the quick brown fox"}
    whole = server.chat(messages=[turn], temperature=0, max_tokens=60, specexport=fixed)
    answer = whole["choices"][0]["message"]["content"]
    assert browser.evaluate(TEXT) == answer
    counted = whole["metrics"]["speculative_decoding"]
    drafted, accepted = counted["num_draft_tokens"], counted["num_accepted_draft_tokens"]
    assert figures(browser, 0)[2:] == (accepted, drafted)
    assert figures(browser, 0)[0] == whole["usage"]["completion_tokens"]
    assert browser.evaluate("document.querySelectorAll('.text .rejected').length") == drafted - accepted
    assert browser.evaluate("document.querySelectorAll('.text .token').length") <= accepted

    say(browser, "and then?")
    browser.wait(ANSWERED.format(2))
    browser.wait("document.querySelectorAll('#plot .bar:not(.plain)').length > 0")
    assert "with guesses" in browser.evaluate("document.getElementById('plot').getAttribute('aria-label')")
    assert re.match(r"[1-9]\d* of \d+", browser.evaluate("document.getElementById('cached').textContent"))
    assert browser.troubles == []


def test_drafts_can_be_played_with(browser: Browser, server: ServerProcess) -> None:
    visit(browser, server)
    choose(browser, "max-tokens", "40")
    choose(browser, "drafter", "ngram")
    choose(browser, "draft-tokens", "2")
    say(browser, "one two three one two three one two")
    browser.wait(ANSWERED.format(1))
    text = browser.evaluate(TEXT)
    assert browser.evaluate("document.querySelectorAll('.text .model, .text .of-model').length") == 0
    browser.click("#speculate")
    browser.click(".note button")
    browser.wait("[...document.querySelectorAll('.note')].some(note => note.textContent.includes('without drafts'))")
    assert browser.evaluate(TEXT) == text
    assert browser.evaluate("document.querySelectorAll('.text .token, .text .rejected').length") == 0
    browser.wait("document.querySelectorAll('#plot .bar.plain').length > 0")
    assert browser.troubles == []


def test_a_schema_and_what_it_forces(browser: Browser, server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "size": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["colour", "size"],
        "additionalProperties": False,
    }
    visit(browser, server)
    choose(browser, "max-tokens", "60")
    browser.click("#schema")
    browser.type("{ no JSON")
    say(browser, "a shirt")
    browser.wait("document.getElementById('trouble').textContent.includes('not JSON')")
    browser.troubles.clear()  # the console has it too
    browser.evaluate(f"document.getElementById('schema').value = {json.dumps(json.dumps(schema))}")
    browser.click("#send")  # what was refused is there again
    browser.wait(ANSWERED.format(1))
    answer = json.loads(browser.evaluate(TEXT))
    assert answer["colour"] in ("red", "green")
    assert 1 <= answer["size"] <= 9
    forced = browser.evaluate("[...document.querySelectorAll('.text .grammar')].map(each => each.textContent).join('')")
    assert forced
    assert forced in json.dumps(answer, separators=(",", ":")) or "size" in forced
    assert not browser.evaluate("document.querySelector('#legend .grammar').hidden")
    assert browser.troubles == []


def test_stop_and_a_new_chat(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    session, target = slow_session(tmp_path, CONTRACT, delay=0.02)
    with served(session) as client:
        visit(browser, client)
        say(browser, "a")
        browser.wait(f"{TEXT}.length > 2")
        assert browser.evaluate("document.getElementById('log').getAttribute('aria-busy')") == "true"
        target.gate.clear()
        browser.click("#stop")
        browser.wait(ANSWERED.format(1))
        target.gate.set()
        assert "stopped" in browser.evaluate("document.querySelector('.note').textContent")
        wait_for(client.idle)
        kept = browser.evaluate(TEXT)
        assert kept
        target.gate.clear()
        say(browser, "b")
        browser.wait("!document.getElementById('stop').hidden")
        browser.click("#stop")  # before an answer begins: the conversation is as it was
        browser.wait(f"{ASKED} === 'b'")
        target.gate.set()
        wait_for(client.idle)
        assert browser.evaluate("document.querySelectorAll('.message').length") == 2
        choose(browser, "max-tokens", "3")
        browser.press_enter()
        browser.wait(ANSWERED.format(2))
        browser.click("#reset")
        assert browser.evaluate("document.querySelectorAll('.message').length") == 0
        choose(browser, "max-tokens", "1000")
        say(browser, "c")
        browser.wait("document.querySelector('.assistant .text').textContent.length > 1")
        browser.click("#reset")  # in the middle of an answer
        wait_for(client.idle)
        browser.wait("!document.getElementById('send').hidden")
        assert browser.evaluate("document.querySelectorAll('.message').length") == 0
    assert browser.troubles == []


def test_a_key_is_asked_for_and_kept_in_memory(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    with served(session, ServerSettings(api_keys=("secret",))) as client:
        browser.screen(390, 740)
        visit_keyed(browser, client)
        assert browser.evaluate(FOCUS) == "key"
        browser.type("wrong")
        browser.press_enter()
        browser.wait(f"{TROUBLE}.includes('does not accept')")
        give_key(browser, "secret")
        browser.wait(READY)
        assert browser.evaluate(TROUBLE) == ""
        assert browser.evaluate(FOCUS) == "prompt"
        choose(browser, "max-tokens", "3")
        say(browser, "a")
        browser.wait(ANSWERED.format(1))
        assert browser.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        browser.open(f"http://127.0.0.1:{client.port}/?again")
        browser.wait(f"{TROUBLE}.includes('needs an API key')")


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("stream.close()", "cut off: the connection was lost"),
        ("send({ error: { message: 'the engine failed' } })", "cut off by an error"),
    ],
)
def test_an_answer_that_was_cut_off_says_so(browser: Browser, server: ServerProcess, after: str, told: str) -> None:
    visit(browser, server)
    browser.evaluate(FAKED.replace("ROUND", json.dumps(ROUND)).replace("AFTER", after) + "; 0")
    say(browser, "a")
    browser.wait(ANSWERED.format(1))
    note = browser.evaluate("document.querySelector('.note').textContent")
    assert told in note
    assert note.startswith("1 token in 1 round ·")
    assert browser.evaluate(TEXT) == "one"
    assert browser.evaluate(TROUBLE)


def test_the_end_of_an_answer_does_not_move_its_reader(browser: Browser, server: ServerProcess) -> None:
    visit(browser, server)
    lines = {**ROUND, "specexport": {**ROUND["specexport"], "pieces": ["line\n" * 100]}}
    faked = FAKED.replace("ROUND", json.dumps(lines)).replace("AFTER", "window.end = () => stream.close()")
    browser.evaluate(faked + "; 0")
    say(browser, "a")
    browser.wait("Boolean(window.end) && document.getElementById('log').scrollTop > 0")
    browser.evaluate("document.getElementById('log').scrollTop = 0")
    browser.evaluate("window.end()")
    browser.wait(ANSWERED.format(1))
    assert browser.evaluate("document.getElementById('log').scrollTop") == 0


def test_the_header_fits_a_small_phone(browser: Browser, server: ServerProcess) -> None:
    browser.screen(320, 568)
    visit(browser, server)
    edges = [f"document.querySelector('{name}').getBoundingClientRect()" for name in ("h1", "summary", "#reset")]
    assert browser.evaluate(f"{edges[0]}.right <= {edges[1]}.left && {edges[1]}.right <= {edges[2]}.left")


def test_a_model_without_a_template_goes_on_with_the_text(
    browser: Browser, server: ServerProcess, tmp_path: Path
) -> None:
    session = fake_session(tmp_path, SlowDecoder(CONTRACT), None)
    with served(session) as client:
        visit(browser, client)
        assert "goes on" in browser.evaluate("document.getElementById('prompt').placeholder")
        assert browser.evaluate("document.getElementById('system').disabled")
        choose(browser, "max-tokens", "5")
        say(browser, "abc")
        browser.wait(ANSWERED.format(1))
        asked = {"prompt": "abc", "max_tokens": 5, "temperature": 0}
        told = json.loads(client.ask("POST", "/v1/completions", asked)[2])
        assert browser.evaluate(TEXT) == told["choices"][0]["text"]
    assert browser.troubles == []


def test_texts_never_become_markup(browser: Browser, server: ServerProcess) -> None:
    visit(browser, server)
    choose(browser, "max-tokens", "2")
    evil = "<img src=x onerror=document.title='evil'><b>"
    say(browser, evil)
    browser.wait(ANSWERED.format(1))
    assert browser.evaluate("document.querySelector('.user .text').textContent") == evil
    drafts = {
        "round": 0,
        "drafted": [
            {"id": 1, "text": evil, "source": source, "accepted": source == "model"} for source in ("model", "x")
        ],
        "pieces": [evil, evil],
    }
    told = browser.evaluate(
        f"""import('/page/rounds.js').then(({{ elements }}) => {{
            const text = document.querySelector('.assistant .text');
            text.replaceChildren(...elements({str(drafts).replace("True", "true").replace("False", "false")}));
            return [text.querySelectorAll('img, b').length, text.textContent];
        }})"""
    )
    assert told == [0, evil * 3]
    assert browser.evaluate("document.title") == "specexport"
    assert browser.troubles == []
