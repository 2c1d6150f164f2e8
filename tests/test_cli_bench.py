"""`specexport bench` on the tiny bundle: its files, its exit codes, and that an interrupted run goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from specexport.calibration.bench import interleaved as module
from specexport.calibration.measuring.journal import Journal
from specexport.cli import main
from support.ended import cause
from support.refusals import check, says

Run = Callable[..., Result]
# Nothing else needs the CPUs, as far as it knows.
MAIN = "import os; os.getloadavg = lambda: (0.0, 0.0, 0.0);"


MAIN += "from specexport.cli import main; main(prog_name='specexport')"


LINES: list[dict[str, Any]] = [
    {"route": "code", "prompt": "def add(a, b):"},
    {"route": "prose", "prompt": "Once upon a time"},
    {"route": "code", "prompt": [5, 6, 7], "max_new_tokens": 3},
    {"route": "chat", "messages": [{"role": "user", "content": "hi"}]},
]


def state(result: Result) -> tuple[str, int, int, Path]:
    """What the one line on stderr says: what became of the run, pairs that are finished, pairs in all, the journal."""
    (line,) = result.stderr.splitlines()
    numbers = re.search(r"(\d+) of (\d+) pairs", line)
    path = re.search(r"(/\S+\.jsonl)", line)
    assert numbers
    assert path
    return re.split(r"\W", line)[0], int(numbers[1]), int(numbers[2]), Path(path[1])


def replaced(result: Result) -> Path:
    """The journal that the one line on stderr says was another run's."""
    (line,) = result.stderr.splitlines()
    path, _, rest = line.partition(" ")
    assert "another run" in rest
    return Path(path)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "bench.jsonl"


@pytest.fixture
def run(built: Path, prompts: Path, journal: Path) -> Run:
    """`specexport bench` of the tiny bundle; the journal lies outside of it, since the bundle is not to be changed."""

    def run(*arguments: object, bundle: Path = built) -> Result:
        given = ("bench", bundle, "--prompts", prompts, "--journal", journal, "--max-new-tokens", 6, *arguments)
        return CliRunner().invoke(main, [str(argument) for argument in given], catch_exceptions=True)

    return run


def found(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, (result.exception, result.stderr)
    assert result.stdout.count("\n") == 1
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_the_table(run: Run, journal: Path) -> None:
    result = run()
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    rows = [line.split()[1:4:2] for line in lines[5:9]]
    assert rows == [["code", "2"], ["prose", "1"], ["chat", "1"], ["all", "4"]]
    assert lines[-1] == "outputs: 4 equal, 0 equal up to a near tie of two logits, 0 different"
    assert not journal.exists()


def test_json_is_one_object_and_nothing_else(run: Run) -> None:
    result = run("--json")
    row = found(result)
    assert result.stderr == ""
    assert row["passed"] is True
    assert [(route["route"], route["requests"], route["equal"]) for route in row["routes"]] == [
        ("code", 2, 2),
        ("prose", 1, 1),
        ("chat", 1, 1),
    ]
    assert row["overall"]["requests"] == 4
    assert [(pair["line"], pair["plain_first"]) for pair in row["pairs"]] == [
        (1, True),
        (2, True),
        (3, False),
        (4, True),
    ]
    assert row["pairs"][2]["prompt_tokens"] == 3
    assert all(pair["speculative"]["emitted"] <= (3 if pair["line"] == 3 else 6) for pair in row["pairs"])


def test_requests_that_the_capacity_shortens_are_counted(run: Run) -> None:
    result = run("--max-new-tokens", 60)  # of 64 tokens; a line of its own says 3
    assert result.exit_code == 0
    says(result.stderr, "3 of 4", 64, "--max-seq-len")
    says(run("--max-new-tokens", 60, "--route", "code", "--limit", 1).stderr, "1 of 1", "--max-seq-len")


def test_options_reach_the_run(run: Run) -> None:
    row = found(
        run("--json", "--route", "code", "--route", "chat", "--limit", 1, "--num-draft-tokens", 2, "--repeats", 2)
    )
    assert [(pair["line"], pair["repeat"]) for pair in row["pairs"]] == [(1, 0), (4, 0), (1, 1), (4, 1)]
    assert all(len(pair["speculative"]["drafted_by_position"]) == 2 for pair in row["pairs"])
    given = ("--temperature", 0.9, "--top-k", 7, "--top-p", 0.8, "--seed", 3, "--drafter", "ngram")
    sampled = found(run("--json", *given, "--max-new-tokens", 9))
    wanted = dict(
        temperature=0.9, top_k=7, top_p=0.8, seed=3, drafter="ngram", max_new_tokens=9, num_draft_tokens=None, repeats=1
    )
    assert sampled["options"] == wanted
    assert sum(route["not_comparable"] for route in sampled["routes"]) == 4
    assert all(
        sum(pair["speculative"]["drafted_by_position"]) == pair["speculative"]["looked_up"] for pair in sampled["pairs"]
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--num-draft-tokens", 5),
        ("--drafter", "oracle"),
        ("--top-p", 0),
        ("--route", "code", "--route", "codes"),
        ("--engine", "cuda"),
        ("--prompts", "none.jsonl"),
        ("--journal", "/dev/null"),
    ],
)
def test_runs_that_are_refused(options: tuple[object, ...], run: Run, journal: Path) -> None:
    """Before anything is written."""
    check(
        cause(run(*options)),
        code=("invalid_value", "output_failed", "unknown_engine"),
        field=[*options, None],
    )
    assert not journal.exists()


def test_a_journal_that_is_taken_or_something_else(run: Run, journal: Path) -> None:
    with Journal.open(journal, {}):
        check(cause(run(), 2), journal, code="in_use")
    journal.write_text("# Notes\n")
    check(cause(run(), 2), journal, field="journal")


def test_lines_that_cannot_be_used(run: Run, prompts: Path, journal: Path) -> None:
    good = prompts.read_text()
    prompts.write_text(good + '\n{"route": "code"}\n')
    message = f'{prompts}, line 5: found no "prompt", expected either "prompt", a text or token ids, or "messages"'
    check(cause(run()), "line 5", field="prompt")
    prompts.write_text(good + "\n" + json.dumps({"route": "code", "prompt": "a b c d " * 50}) + '\n{"route": "code"}\n')
    prompts_without = prompts.read_text().rsplit("\n", 2)[0]
    result = run("--skip-invalid", "--json")
    assert len(found(result)["pairs"]) == 4
    lines = result.stderr.splitlines()
    assert lines[0] == f"skipped: {message.replace('line 5', 'line 6')}"
    assert lines[1].startswith(f"skipped: {prompts}, line 5: the prompt has ")
    assert len(lines) == 2
    prompts.write_text(prompts_without)
    check(cause(run()), "--max-seq-len", "301", field="prompt")
    prompts.write_text(json.dumps({"route": "code", "prompt": "a", "max_new_tokens": 0}))
    says(run().stderr.splitlines()[-1], '"max_new_tokens": 0')  # the key of the file, not the option
    assert not journal.exists()


@pytest.fixture
def interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """A run that Ctrl-C ends after some pairs (the warm-up is one more)."""

    def interrupted(pairs: int, *arguments: object, **options: Any) -> Result:
        with monkeypatch.context() as patch:
            original, started = module.run_both_ways, []

            def counted(*given: Any) -> Any:
                started.append(1)
                if len(started) > pairs + 1:
                    raise KeyboardInterrupt
                return original(*given)

            patch.setattr(module, "run_both_ways", counted)
            return run(*arguments, **options)

    return interrupted


def deterministic(row: dict[str, Any]) -> list[Any]:
    """What a run must give again, whenever it is run."""

    def without_times(run: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in run.items() if not key.endswith("_seconds")}

    return [pair | {way: without_times(pair[way]) for way in ("plain", "speculative")} for pair in row["pairs"]]


@pytest.mark.usefixtures("drafts_the_maximum")
def test_an_interrupted_run_goes_on(run: Run, interrupted: Callable[..., Result], journal: Path) -> None:
    result = interrupted(2, "--json")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert state(result) == ("interrupted", 2, 4, journal)
    kept = [json.loads(line)["row"] for line in journal.read_text().splitlines()[1:]]
    assert len(kept) == 2
    again = run("--json")
    assert state(again) == ("resuming", 2, 4, journal)
    row = found(again)
    assert row["pairs"][:2] == kept  # times and all: they were not run again
    assert deterministic(row) == deterministic(found(run("--json")))
    assert not journal.exists()


@pytest.mark.parametrize("change", [("--seed", 1), ("--limit", 1)])
def test_other_settings_are_another_run(
    change: tuple[object, ...], run: Run, interrupted: Callable[..., Result], journal: Path
) -> None:
    interrupted(2)
    result = run("--json", *change)
    assert replaced(result) == journal
    assert found(result)["passed"]


def test_without_a_path_the_run_is_kept_in_the_bundle(
    interrupted: Callable[..., Result], bundle: Path, prompts: Path
) -> None:
    arguments = ["bench", str(bundle), "--prompts", str(prompts), "--max-new-tokens", "6"]
    path = bundle / "calibration"
    kept: list[bool] = []

    original = module.bench
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "bench", lambda *given: (kept.append(any(path.iterdir())), original(*given))[1])
        assert CliRunner().invoke(main, arguments).exit_code == 0
    assert kept == [True]
    assert not path.exists()
    path.mkdir()
    (path / "notes").write_text("")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert [entry.name for entry in path.iterdir()] == ["notes"]


def test_outputs_that_differ_are_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch, journal: Path) -> None:
    monkeypatch.setattr(module, "_compare", lambda *_: "different")
    result = run()
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("FAILED: ")
    assert result.stderr == ""
    assert not journal.exists()
    assert json.loads(run("--json").stdout)["passed"] is False


@pytest.mark.slow
def test_bench_needs_no_torch_and_nothing_to_calibrate_with(built: Path, prompts: Path, journal: Path) -> None:
    blocked = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "scipy", "sklearn", "matplotlib")
    script = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}));" + MAIN
    arguments = ("bench", built, "--prompts", prompts, "--journal", journal, "--limit", 1, "--max-new-tokens", 4)
    result = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments), "--json"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["passed"]
