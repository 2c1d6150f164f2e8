"""A repository as it is written, in a real `tritonserver`: `make triton` installs it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import specexport
from specexport.integrations.triton.repository import RepositoryOptions, write_repository
from start_tritonserver import environment
from support.triton_server import TritonServer, python_path

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(isinstance(environment(), str), reason=str(environment())),
]
PROMPT = "def main():\n"


@pytest.fixture(scope="module")
def server(demo_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """The demo pair as the model `demo`, on two instances of one thread."""
    folder = tmp_path_factory.mktemp("triton")
    options = RepositoryOptions(instances=2, threads=1, python_path=tuple(python_path(folder)))
    assert write_repository(demo_bundle, folder / "models", options) == ("demo", "demo_whole")
    process = TritonServer(folder / "models", folder)
    try:
        process.wait_until_ready()
        yield process
    finally:
        code = process.end()
    assert code == 0, process.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def alone(demo_bundle: Path) -> Iterator[specexport.Session]:
    with specexport.load(demo_bundle, threads=1) as session:
        yield session


def total(server: TritonServer, counter: str) -> float:
    return sum(server.counters(counter).values())


def test_a_stream_is_the_answer_of_a_session(server: TritonServer, alone: specexport.Session) -> None:
    status, events = server.stream("demo", PROMPT, max_new_tokens=48)
    expected = alone.generate(PROMPT, max_new_tokens=48)
    assert status == 200
    assert "".join(event["text_output"] for event in events) == expected.text
    assert events[-1]["finish_reason"] == expected.finish_reason
    statistics = json.loads(events[-1]["statistics"])
    assert statistics["emitted"] == len(expected.tokens)
    assert statistics["rounds"] == len(events)
    assert all("statistics" not in event for event in events[:-1])


def test_the_second_model_answers_once(server: TritonServer, alone: specexport.Session) -> None:
    options = {"max_new_tokens": 24, "temperature": 0.9, "seed": 5, "num_draft_tokens": 3}
    status, answer = server.whole("demo_whole", PROMPT, **options)
    expected = alone.generate(PROMPT, **options)
    assert (status, answer["text_output"]) == (200, expected.text)
    assert json.loads(answer["statistics"])["emitted"] == len(expected.tokens)


def test_what_is_wrong_is_400_in_one_line(server: TritonServer) -> None:
    told = "options: unknown parameter 'max_tokens'; did you mean max_new_tokens?"
    status, [event] = server.stream("demo", PROMPT, max_tokens=4)
    assert (status, event) == (400, {"error": told})
    assert server.whole("demo_whole", PROMPT, max_tokens=4) == (400, {"error": told})
    assert server.whole("demo_whole", PROMPT, max_new_tokens=4)[0] == 200


def test_a_client_that_leaves_ends_its_request(server: TritonServer) -> None:
    rounds, tokens = total(server, "iterations"), total(server, "generation_tokens")
    server.leave("demo", PROMPT, max_new_tokens=1000)
    server.wait_for(lambda: total(server, "iterations") > rounds)  # counted last
    assert 0 < total(server, "generation_tokens") - tokens < 1000


def test_two_instances_answer_at_once(server: TritonServer) -> None:
    before = server.counters("generation_tokens")
    assert set(before) == {"demo_0_0", "demo_0_1"}
    texts: list[str] = []

    def ask() -> None:
        _, events = server.stream("demo", PROMPT, max_new_tokens=200)
        texts.append("".join(event["text_output"] for event in events))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    assert len(set(texts)) == 1
    after = server.counters("generation_tokens")
    assert all(after[instance] > before[instance] for instance in before)
