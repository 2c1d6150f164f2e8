"""The driver of benchmarks/peers: order, ratios, and runners that fail. The runners here are scripts of a few lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks/peers"))
import catalogue
from divergence import Divergence
from figures import markdown, route_table, rows, width_table
from interleave import Measured, Request, System, answer_length, run
from process import RunnerError, RunnerProcess
from protocol import Stopwatch, converted

HELLO = """import json, sys
print(json.dumps({"name": "fake", "versions": {}, "speculative": True, "widths": False}), flush=True)
"""
ECHO = HELLO + 'for line in sys.stdin: print(json.dumps({"tokens": json.loads(line)["prompt_tokens"]}), flush=True)\n'
DIES = HELLO + 'sys.stdin.readline()\nsys.exit("out of memory\\nsecond line")\n'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    made: list[RunnerProcess] = []

    def make(name: str, code: str) -> RunnerProcess:
        made.append(RunnerProcess(name, [sys.executable, "-c", code], tmp_path / f"{name}.log"))
        return made[-1]

    yield make
    for process in made:
        process.close()


STRAY = 9  # a request on which something else took the machine from the peer


class Recorded:
    """Answers with its own pace, in milliseconds a token."""

    def __init__(self, name: str, pace: dict[bool, float], asked: list[tuple[str, bool, int]]) -> None:
        self.name, self.pace, self.asked = name, pace, asked

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        mode, prompt = request["speculative"], request["prompt_tokens"]
        self.asked.append((self.name, mode, prompt[0]))
        decoded = request["new_tokens"] - 2
        # Every second request is twice as slow for everybody: ratios by request do not see it.
        seconds = self.pace[mode] * decoded * (1 + prompt[0] % 2) / 1e3
        if self.name == "peer" and prompt[0] == STRAY:
            seconds *= 100
        tokens = list(range(request["new_tokens"]))
        return {
            "seconds_first": 0.5,
            "tokens_first": 2,
            "seconds_decode": seconds,
            "cpu_decode": 2 * seconds,
            "tokens": tokens,
            "rounds": decoded // 2,
        }


def compared(paces: dict[str, dict[bool, float]], prompts: list[list[int]]) -> tuple[list[tuple[str, bool, int]], Any]:
    asked: list[tuple[str, bool, int]] = []
    runners = [Recorded(name, pace, asked) for name, pace in paces.items()]
    systems = [System(runner.name, runner, mode) for mode in (False, True) for runner in runners]
    return asked, run(systems, [Request("any", prompt, new_tokens=12) for prompt in prompts], k=4)


def test_every_system_answers_a_request_before_the_next_one() -> None:
    asked, _ = compared({"ours": {False: 1, True: 1}, "peer": {False: 1, True: 1}}, [[0], [1], [2]])
    everybody = {(name, mode) for name in ("ours", "peer") for mode in (False, True)}
    assert len(asked) == 4 * 4  # a warm-up and three requests
    for index, prompt in enumerate((0, 0, 1, 2)):
        group = asked[4 * index : 4 * index + 4]
        assert {entry[2] for entry in group} == {prompt}
        assert {entry[:2] for entry in group} == everybody
    assert len({asked[4 * index][:2] for index in (1, 2, 3)}) == 3  # not always the same one first


def test_ratios_are_by_request_and_by_mode() -> None:
    _, answers = compared({"ours": {False: 10, True: 4}, "peer": {False: 15, True: 10}}, [[0], [1], [2], [3], [STRAY]])
    found = {(row.name, row.speculative): row for row in rows(answers, "ours")}
    assert found["peer", False].against == pytest.approx(1.5)
    assert found["peer", True].against == pytest.approx(2.5)
    assert found["ours", True].against == pytest.approx(1.0)
    assert found["peer", True].speedup == pytest.approx(1.5)
    assert found["peer", False].speedup is None
    assert found["peer", False].ms == pytest.approx(30)  # of 15, 30, 15, 30, 3000
    assert (found["ours", False].ms_p10, found["ours", False].ms_p90) == pytest.approx((10, 20))
    assert found["peer", True].tokens_per_round == pytest.approx(2.0)
    table = markdown(rows(answers, "ours", {"peer": Divergence(0.0123, 0.9876, 7)}), "ours")
    speculative = "| peer | speculative | 20.00 | 10.00 to 1208.00 | 40.00 | 2.50 | 1.50x | 2.00 | 40.0 | 5 of 5 |"
    assert f"{speculative} 0.0123 | 98.8% |" in table
    assert "| ours | plain | 20.00 | 10.00 to 20.00 | 40.00 | 1.00 |  |  |  |  |  |  |" in table


def test_routes_are_told_apart() -> None:
    _, answers = compared({"ours": {False: 10, True: 4}, "peer": {False: 15, True: 10}}, [[0], [1], [2], [STRAY]])
    table = route_table(answers, ["code", "prose", "code", "prose"]).splitlines()
    assert [line.split(" | ")[:3] for line in table[2:]] == [
        [f"| {route}", name, "2"] for route in ("code", "prose") for name in ("ours", "peer")
    ]
    assert table[2] == "| code | ours | 2 | 10.00 | 4.00 | 2.50x | 2.50x, 2.50x | 2.00 | 2 of 2 |"


def test_everybody_decodes_as_many_tokens_as_the_first_answer_has() -> None:
    asked: list[tuple[str, bool, int]] = []
    systems = [System(name, Recorded(name, {False: 1, True: 1}, asked), False) for name in ("ours", "peer")]
    for ends, length in ((), 40), ({14}, 15), ({3}, 10), ({70}, 40):  # at k = 4 never less than two rounds
        request = Request("any", [0], 40, frozenset(ends))
        assert answer_length(systems[0], request, 4) == length
        assert {len(found[0].tokens) for found in run(systems, [request], 4).values()} == {length}


class Finished:
    def __init__(self) -> None:
        self.finished: dict[str, Any] = {}

    def add(self, key: str, row: dict[str, Any]) -> None:
        self.finished[key] = json.loads(json.dumps(row))


def test_a_run_goes_on_with_the_requests_that_are_missing() -> None:
    asked: list[tuple[str, bool, int]] = []
    systems = [System("ours", Recorded("ours", {False: 3}, asked), False)]
    requests, kept = [Request("any", [first], 12) for first in (0, 1, 2)], Finished()
    whole = run(systems, requests, 4, kept=kept)
    assert run(systems, requests, 4, kept=kept) == whole
    assert len(asked) == 4  # a warm-up and three requests, none of them again
    del kept.finished["request 1"]
    assert run(systems, requests, 4, kept=kept) == whole
    assert [entry[2] for entry in asked[4:]] == [1, 1]


def test_a_text_that_differs_from_the_own_plain_run_is_counted() -> None:
    plain, longer, other = (Measured(tokens, 1, 0.1, 0.1, 0.2, 2) for tokens in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 9)))
    (row,) = (
        row for row in rows({("peer", False): [plain, plain], ("peer", True): [longer, other]}, None) if row.speculative
    )
    assert row.same == 1
    assert row.against is None


def test_a_runner_that_ends_is_one_line_that_names_it(start: Any) -> None:
    runner = start("openvino", DIES)
    with refused(RunnerError, "1") as caught:
        runner.ask({"prompt_tokens": [1]})
    assert str(caught.value).startswith("openvino ended with exit code 1: second line")


def test_a_runner_that_cannot_load_says_why(start: Any) -> None:
    with refused(RunnerError, "llamacpp"):
        start("llamacpp", 'print(\'{"error": "no such file"}\')')


def test_a_runner_is_stopped_between_requests(start: Any) -> None:
    runner = start("fake", ECHO)
    for prompt in ([1, 2], [3]):
        assert runner.ask({"prompt_tokens": prompt}) == {"tokens": prompt}
        assert state(runner.process.pid) == "T"
    os.kill(runner.process.pid, signal.SIGCONT)
    assert state(runner.process.pid, "S") == "S"


def state(pid: int, wanted: str = "T") -> str:
    """Of a process, as the kernel says it; a signal takes a moment."""
    for _ in range(200):
        found = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if found == wanted:
            break
        time.sleep(0.01)
    return found


def test_the_first_round_is_no_decoding() -> None:
    watch = Stopwatch()
    for tokens in ([1, 2, 3], [4], [5, 6]):
        watch.add(tokens)
    answer = watch.answer(6, rounds=2)
    assert (answer.tokens_first, answer.tokens) == (3, [1, 2, 3, 4, 5, 6])
    assert answer.seconds_first + answer.seconds_decode == pytest.approx(watch.last - watch.start)
    with refused(ValueError, "7"):
        watch.answer(7)


def test_a_model_is_converted_once_and_again_when_it_changed(tmp_path: Path) -> None:
    checkpoint, calls = tmp_path / "model", []
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")

    def convert(folder: Path) -> None:
        calls.append(folder)
        (folder / "out").write_text("done")

    first = converted(tmp_path / "work", str(checkpoint), "int8", convert)
    assert converted(tmp_path / "work", str(checkpoint), "int8", convert) == first
    assert (len(calls), (first / "out").read_text()) == (1, "done")
    (checkpoint / "config.json").write_text("{ }")
    assert converted(tmp_path / "work", str(checkpoint), "int8", convert) != first
    assert sorted((tmp_path / "work").iterdir()) == sorted(
        {first, converted(tmp_path / "work", str(checkpoint), "int8", convert)}
    )


def test_widths_are_held_against_one_row() -> None:
    assert (
        width_table({"llamacpp": {"1": 10.0, "5": 27.0}}).splitlines()[-1]
        == "| llamacpp | 10.00 (1.00) | 27.00 (2.70) |"
    )


def test_a_missing_environment_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEXPORT_PEERS", str(tmp_path))
    with refused(FileNotFoundError):
        catalogue.PEERS["llamacpp"].command(tmp_path, tmp_path, 2, 64)


def test_the_driver_runs_specexport_end_to_end(bundle: Path, pair: Any, tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "benchmarks/peers/compare.py"
    out = tmp_path / "figures.json"
    options = [
        "--bundle",
        f"fp32={bundle}",
        "--peers",
        "transformers",
        "--requests",
        "2",
        "--new-tokens",
        "8",
        "--prompt-tokens",
        "12",
        "--journal",
        tmp_path / "journal.jsonl",
        "--json",
        out,
    ]
    done = subprocess.run(
        [sys.executable, script, pair.target, pair.draft, *options, "--threads", "1", "--context", "32"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert [(row["name"], row["speculative"]) for row in found["rows"]] == [
        (name, mode) for mode in (False, True) for name in ("specexport fp32", "transformers")
    ]
    assert [row["against"] for row in found["rows"] if row["name"] == "specexport fp32"] == [1.0, 1.0]
    assert found["rows"][2]["same"] == 2
    # fp32 graphs, through the engine that answers: as near as their proof demands
    assert found["divergences"]["specexport fp32"]["nats"] < 1e-6
    assert found["divergences"]["specexport fp32"]["agreement"] == 1
    keys = [json.loads(line).get("key", "") for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert {"request 0", "request 1", "widths of specexport fp32", "divergence of transformers"} <= set(keys)
    assert set(found["widths"]["specexport fp32"]) == {"1", "2", "3", "5", "8"}
