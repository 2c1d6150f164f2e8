"""Conversations in turn over a socket: what each gives alone, and no more prefilled than what is new."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.serving import Client, ServerProcess

TURNS = 10
NAMES = ("prefix_cache_queries_total", "prefix_cache_hits_total")
TALKS = ("Hello, I am the first one", "Quite another conversation, it is about numbers: ")
Told = tuple[list[int], str, int]  # ids of the prompt, the answer's text, tokens that were cached


class Talk:
    """One conversation. salt: whose rows it may share."""

    def __init__(self, client: Client, opening: str, salt: str) -> None:
        self._client, self._opening, self._salt = client, opening, salt
        self._messages: list[dict[str, str]] = []

    def turn(self) -> Told:
        said = f"{self._opening} {len(self._messages)}, and so on"
        self._messages.append({"role": "user", "content": said})
        asked: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "stop_token_ids": [], "cache_salt": self._salt}
        answer = self._client.chat(messages=self._messages, **asked)
        text = answer["choices"][0]["message"]["content"]
        ids = json.loads(self._client.ask("POST", "/tokenize", {"messages": self._messages})[2])["tokens"]
        self._messages.append({"role": "assistant", "content": text})
        assert answer["usage"]["prompt_tokens"] == len(ids)
        return ids, text, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def shared(one: list[int], other: list[int]) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def test_each_gives_what_it_gives_alone(server: ServerProcess) -> None:
    alone = []
    for place, opening in enumerate(TALKS):
        talk = Talk(server, opening, f"alone {place}")
        alone.append([talk.turn() for _ in range(TURNS)])
    before = server.metrics()
    talks = [Talk(server, opening, f"in turn {place}") for place, opening in enumerate(TALKS)]
    found: list[list[Told]] = [[], []]
    for _ in range(TURNS):
        for place, talk in enumerate(talks):
            found[place].append(talk.turn())
    assert found == alone  # to the number of cached tokens
    for turns in found:
        assert turns[0][2] == 0
        for (earlier, _, _), (ids, _, cached) in pairwise(turns):
            assert cached >= shared(earlier, ids) > 0
    check_metrics(server, before, [turn for turns in found for turn in turns])


def check_metrics(server: ServerProcess, before: dict[str, float], turns: list[Told]) -> None:
    after = server.metrics()
    grown = {name: after[f"specexport:{name}"] - before[f"specexport:{name}"] for name in NAMES}
    assert grown[NAMES[0]] == sum(len(ids) for ids, _, _ in turns)
    assert grown[NAMES[1]] == sum(cached for _, _, cached in turns)


def test_another_salt_sees_nothing(server: ServerProcess) -> None:
    opening = TALKS[0]
    first = Talk(server, opening, "one").turn()
    assert Talk(server, opening, "another").turn()[::2] == (first[0], 0)
    assert Talk(server, opening, "one").turn()[::2] == (first[0], len(first[0]) - 1)


@pytest.mark.parametrize("mib", [0, 8])
def test_the_budget_is_the_commands(served_bundle: Path, tmp_path: Path, mib: int) -> None:
    process = ServerProcess(served_bundle, tmp_path / "log", "--prompt-cache-mib", str(mib))
    for _ in range(2):
        cached = [Talk(process, opening, opening).turn()[2] for opening in TALKS]
    assert [bool(count) for count in cached] == [mib > 0] * 2
    assert process.end() == 0
