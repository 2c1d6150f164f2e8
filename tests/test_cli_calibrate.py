"""`specexport calibrate` on the tiny bundle: what it writes, what follows it, and what it says of bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from specexport.calibration import calibrate as module
from specexport.calibration import steps
from specexport.cli import main
from support.ended import cause
from support.refusals import check, says

pytestmark = pytest.mark.slow

Run = Callable[..., Result]
LINES: list[dict[str, Any]] = [
    {"route": route, "prompt": f"def add{n}(a, b):"} for n in range(3) for route in ("code", "prose")
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    return path


@pytest.fixture
def run(bundle: Path) -> Run:
    def run(command: str, *arguments: object) -> Result:
        return CliRunner().invoke(main, [command, str(bundle), *map(str, arguments)], catch_exceptions=True)

    return run


def error(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, (result.exception, result.stderr)
    assert isinstance(result.exception, SystemExit)
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    return line


def test_calibrate_writes_what_generate_and_inspect_follow(run: Run, bundle: Path, prompts: Path) -> None:
    result = run("calibrate", "--prompts", prompts, "--max-new-tokens", 8, "--json")
    assert result.exit_code == 0, (result.exception, result.stderr)
    found = json.loads(result.stdout)
    assert {route["route"] for route in found["routes"]} == {"code", "prose"}
    assert {path.name for path in bundle.iterdir()} >= {"costs.json", "policy.json", "report.md"}
    assert not (bundle / "calibration").exists()
    assert (bundle / "report.md").read_text().startswith("# Too few requests to decide on all 2 routes")

    text = run("inspect").stdout
    assert re.search(r"code: UNDECIDED, as many draft tokens by (ngram\+)?draft as pay; a = ", text)
    assert "3 requests" in text
    assert "costs      draft: onnxruntime" in text
    costs = json.loads((bundle / "costs.json").read_text())
    costs["draft"]["host"] = "another machine"
    (bundle / "costs.json").write_text(json.dumps(costs))
    assert "not used here: costs.json was measured on another machine, not on " in run("inspect").stdout
    assert json.loads(run("inspect", "--json").stdout)["policy"]["routes"]["code"]["verdict"] == "undecided"

    policy = json.loads((bundle / "policy.json").read_text())
    policy["routes"]["code"] = policy["default"] | {"verdict": "off", "num_draft_tokens": 0, "mode": "fixed"}
    (bundle / "policy.json").write_text(json.dumps(policy))
    generated = run("generate", "--prompt", "def", "--max-new-tokens", 8, "--route", "code", "--json")
    assert json.loads(generated.stdout)["statistics"]["drafted"] == 0
    assert "code: OFF, plain decoding" in run("inspect").stdout
    known, unknown = (
        run("generate", "--prompt", "def", "--max-new-tokens", 2, "--route", route) for route in ("code", "prose2")
    )
    assert "has no effect" not in known.stderr
    assert known.stderr.endswith("; nothing drafted: the policy's verdict is OFF\n")
    plain = run("generate", "--prompt", "def", "--max-new-tokens", 2, "--route", "code", "--plain")
    assert "verdict" not in plain.stderr
    assert unknown.stderr.startswith("--route prose2 has no effect: the policy has code, prose; ")
    forced = run(
        "generate", "--prompt", "def", "--max-new-tokens", 8, "--route", "code", "--num-draft-tokens", 2, "--json"
    )
    assert json.loads(forced.stdout)["statistics"]["drafted"] > 0

    policy["bundle"] = "0" * 64
    (bundle / "policy.json").write_text(json.dumps(policy))
    for command in (("generate", "--prompt", "def"), ("inspect",)):
        check(cause(run(*command)), "delete", code="stale")
    assert run("calibrate", "--prompts", prompts, "--max-new-tokens", 4, "--fixed").exit_code == 0  # which mends it
    assert json.loads((bundle / "policy.json").read_text())["default"]["mode"] == "fixed"


@pytest.mark.parametrize(
    "line",
    [
        '{"route": "code", "prompt": ',
        '{"prompt": "no route"}',
        json.dumps({"route": "code", "prompt": "def " * 200}),
    ],
    ids=["cut", "without a route", "too long"],
)
def test_lines_that_cannot_be_used(run: Run, prompts: Path, line: str) -> None:
    prompts.write_text(prompts.read_text() + "\n" + line)
    check(cause(run("calibrate", "--prompts", prompts, "--max-new-tokens", 4)), "7", field=(None, "prompt", "route"))
    result = run("calibrate", "--prompts", prompts, "--max-new-tokens", 4, "--skip-invalid", "--json")
    assert result.exit_code == 0, result.stderr
    assert "skipped: " in result.stderr
    assert sum(route["requests"] for route in json.loads(result.stdout)["routes"]) == 6


def test_an_interrupt_says_how_to_go_on(run: Run, prompts: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ran = steps.record, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(1)
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "record", interrupted)
        result = run("calibrate", "--prompts", prompts, "--max-new-tokens", 4)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].startswith("interrupted; ")
    ran.clear()
    monkeypatch.setattr(steps, "record", lambda *arguments, **options: (ran.append(1), real(*arguments, **options))[1])
    again = run("calibrate", "--prompts", prompts, "--max-new-tokens", 4)
    assert again.exit_code == 0
    assert len(ran) == 4


@pytest.mark.parametrize("package", ["scikit-learn"])
def test_a_missing_package_is_told_before_the_run(
    run: Run, prompts: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    absent = package.replace("scikit-learn", "sklearn")
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == absent else name)
    monkeypatch.setattr(steps, "record", lambda *arguments, **options: pytest.fail("it ran"))
    check(cause(run("calibrate", "--prompts", prompts)), package, "specexport[calibrate]")


def test_there_is_nothing_to_decide_without_prompts(run: Run) -> None:
    says(error(run("calibrate"), 2), "--prompts")
