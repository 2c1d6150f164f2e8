"""What the scripts of all clients share: a check is a function, its result a line of JSON on stdout.

It runs in each client's environment, so it needs the standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODEL, ANOTHER_NAME, TOKENIZER = (os.environ.get(name, "") for name in ("MODEL", "ANOTHER_NAME", "TOKENIZER"))
PLAIN_URL, TOOLS_URL = (os.environ.get(name, "") for name in ("PLAIN_URL", "TOOLS_URL"))
PLAIN, TOOLS = f"{PLAIN_URL}/v1", f"{TOOLS_URL}/v1"

PROMPT = "Why is the sky blue?"
MESSAGES = [{"role": "user", "content": PROMPT}]
TOO_LONG = "word " * 20_000
LONG = 1800  # tokens: long enough to leave in the middle
CITIES = ("Oslo", "Rome")  # a choice ends, whatever the model
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": PLACE}}
CALLED: dict[str, Any] = dict(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=300)

checks: list[Callable[[], Any]] = []


class UnexpectedError(Exception):
    """The client took the answer, and it is not what it should be."""


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Its name is the check's; it may be a coroutine function, and returning is passing."""
    checks.append(function)
    return function


def refusal(error: BaseException | None) -> bool:
    """Whether `error`, or what it was raised from, is an answer with a status of 4xx that the check did not want."""
    while error is not None and not isinstance(error, UnexpectedError):
        response = getattr(error, "response", None)
        for status in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
            if isinstance(status, int) and 400 <= status < 500:
                return True
        error = error.__cause__ or error.__context__
    return False


def outcome(function: Callable[[], Any]) -> dict[str, str]:
    try:
        found = function()
        if inspect.isawaitable(found):
            asyncio.run(found)  # type: ignore[arg-type]
    except Exception as error:
        kind = "refused" if refusal(error) else "fails"
        return {"outcome": kind, "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"outcome": "ok", "reason": ""}


def main() -> None:
    for function in checks:
        print(json.dumps({"check": function.__name__} | outcome(function)), flush=True)


def expect(holds: object, found: object) -> None:
    """An assertion that says what it found. Raises `UnexpectedError`."""
    if not holds:
        raise UnexpectedError(repr(found))


def streams_the_answer(ask: Callable[..., Any]) -> None:
    """Of a client whose answers are objects like openai's."""
    whole = ask().choices[0]
    chunks = [chunk.choices[0] for chunk in ask(stream=True)]
    expect("".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content, chunks)
    expect(chunks[-1].finish_reason == whole.finish_reason, chunks[-1])


def calls_and_answers(ask: Callable[..., Any]) -> None:
    """The same, with tools: a call, its result, an answer without calls."""
    choice = ask(**CALLED).choices[0]
    expect(choice.finish_reason == "tool_calls" and choice.message.tool_calls, choice)
    messages: list[Any] = [*MESSAGES, choice.message]
    for call in choice.message.tool_calls:
        expect(json.loads(call.function.arguments)["city"] in CITIES, call)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    choice = ask(messages=messages, tools=[WEATHER], tool_choice="none").choices[0]
    expect(isinstance(choice.message.content, str) and not choice.message.tool_calls, choice)


@contextmanager
def refused_with(kind: type[BaseException], words: str = "") -> Iterator[list[Any]]:
    """The block must raise just this, which is then in the list. words: a regular expression that its text must have.

    Raises `UnexpectedError`.
    """
    found: list[Any] = []
    try:
        yield found
    except kind as error:
        found.append(error)
    expect(found and re.search(words, str(found[0])), found or f"no {kind.__name__} was raised")


def command(name: str, *options: str) -> None:
    """Run a program of this environment, which must exit with 0."""
    program = Path(sys.executable).parent / name
    done = subprocess.run(
        [program, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, encoding="utf-8"
    )
    print(done.stdout, file=sys.stderr)
    expect(done.returncode == 0, f"{name} exited with {done.returncode}: {done.stdout[-200:]}")


def tokenizer_folder() -> str:
    """The bundle's tokenizer as transformers' AutoTokenizer takes it, for clients that make prompts of a length."""
    folder = Path("tokenizer").resolve()
    folder.mkdir(exist_ok=True)
    shutil.copy(Path(TOKENIZER) / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return str(folder)


def aborted() -> int:
    """How many requests ended because their client had left."""
    with urllib.request.urlopen(f"{PLAIN_URL}/metrics", timeout=60) as answer:
        found = re.findall(r'request_success_total\{.*"abort".*\} (\S+)', answer.read().decode())
    return int(sum(map(float, found)))


class Leaves:
    """A block in which the client leaves a request; at its end the server must notice. `with` or `async with`."""

    def __enter__(self) -> None:
        self.before = aborted()

    def __exit__(self, kind: object, *_: object) -> None:
        for _ in range(200 if kind is None else 0):
            if aborted() > self.before:
                return
            time.sleep(0.1)
        expect(kind, "the server did not notice that the client left")

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.to_thread(self.__exit__, *raised)  # the loop goes on closing what the client left
