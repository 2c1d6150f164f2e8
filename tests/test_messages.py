"""The fixture `refused` and its file, in runs of pytest within this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from specexport.errors import SpecExportError
from support.messages import flat

Run = Callable[..., pytest.RunResult]
TWO = """
    import pytest

    @pytest.mark.parametrize("width", [2, 3])
    def test_widths(refused, tmp_path, width):
        with refused(ValueError):
            raise ValueError(f"{tmp_path / 'a.json'}: {width} is too wide")
        refused.says("5.6 standard deviations off")

    def test_other(refused):
        with refused((KeyError, OSError)):
            raise FileNotFoundError(__file__)
"""
FOUND = {
    "test_some.py::test_other": "FileNotFoundError: <checkout>/tests/test_some.py",
    "test_some.py::test_widths[2]": "ValueError: <tmp>/a.json: 2 is too wide",
    "test_some.py::test_widths[2] #2": "<x> standard deviations off",
    "test_some.py::test_widths[3]": "ValueError: <tmp>/a.json: 3 is too wide",
    "test_some.py::test_widths[3] #2": "<x> standard deviations off",
}
UNUSED = "*entries of tests/messages.json that no test uses*"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """pytest in a checkout of its own, whose only file of tests holds `text`."""
    pytester.makeini("[pytest]\ntestpaths = tests\n")
    (pytester.path / "tests").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for workers

    def run(text: str, *arguments: str) -> pytest.RunResult:
        pytester.path.joinpath("tests/test_some.py").write_text(pytester.makepyfile(text).read_text())
        return pytester.runpytest_inprocess("-p", "support.messages", "-p", "no:cacheprovider", *arguments)

    return run


@pytest.fixture
def file(pytester: pytest.Pytester) -> Path:
    return pytester.path / "tests/messages.json"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_written_is_compared_from_then_on(run: Run, file: Path, workers: str) -> None:
    run(TWO).assert_outcomes(failed=3)  # nothing is stored yet
    assert not file.exists()
    run(TWO, "-n", workers, "--update-messages").assert_outcomes(passed=3)
    assert flat(json.loads(file.read_text())) == FOUND
    assert list(json.loads(file.read_text())["test_some.py"]) == ["test_other", "test_widths"]
    file.write_text(json.dumps(FOUND))  # whole keys are read too
    result = run(TWO, "-n", workers)
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line(UNUSED)


def test_another_message_and_another_type_fail(run: Run, file: Path) -> None:
    run(TWO, "--update-messages")
    before = file.read_bytes()
    result = run(TWO.replace("too wide", "too long"))
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(
        ["-*2 is too wide", "[+]*2 is too long", "*python -m pytest --update-messages tests/test_some.py"]
    )
    run(TWO.replace("raise ValueError", "raise UnicodeError")).assert_outcomes(failed=2, passed=1)  # a ValueError, too
    run(TWO.replace("raise ValueError", "raise TypeError")).assert_outcomes(failed=2, passed=1)
    run(TWO.replace("raise FileNotFoundError", "str")).assert_outcomes(failed=1, passed=2)  # nothing is raised
    assert file.read_bytes() == before


@pytest.mark.parametrize("message", ["", " ", "one\\ntwo", "one\\u2028two", "found Traceback (most recent call last):"])
def test_the_house_rule_holds_also_for_what_is_new(run: Run, message: str) -> None:
    text = f"def test_it(refused):\n    with refused(ValueError):\n        raise ValueError('{message}')\n"
    run(text, "--update-messages").assert_outcomes(failed=1)


def test_an_update_leaves_what_did_not_run(run: Run, file: Path) -> None:
    run(TWO, "--update-messages")
    run(TWO.replace("wide", "long"), "--update-messages", "-k", "2").assert_outcomes(passed=1, deselected=2)
    assert flat(json.loads(file.read_text())) == FOUND | {
        "test_some.py::test_widths[2]": "ValueError: <tmp>/a.json: 2 is too long"
    }


def test_a_test_that_breaks_off_keeps_its_later_messages(run: Run, file: Path) -> None:
    run(TWO, "--update-messages")
    run(TWO.replace("refused.says", "assert False, "), "--update-messages").assert_outcomes(failed=2, passed=1)
    assert flat(json.loads(file.read_text())) == FOUND


@pytest.mark.parametrize("workers", ["0", "1"])
def test_entries_without_a_test_are_told_by_whole_runs(run: Run, file: Path, workers: str) -> None:
    run(TWO, "--update-messages")
    fewer = TWO.replace("test_other", "test_renamed").replace(
        "with refused((KeyError, OSError))", "with pytest.raises(OSError)"
    )
    result = run(fewer, "-n", workers, "tests/test_some.py")
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line(UNUSED)
    result = run(fewer, "-n", workers)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([UNUSED, "test_some.py::test_other"])
    run(fewer, "-n", workers, "--update-messages")
    assert flat(json.loads(file.read_text())) == {key: said for key, said in FOUND.items() if "other" not in key}


def test_a_message_that_a_test_no_longer_has_is_told_at_once(run: Run) -> None:
    run(TWO, "--update-messages")
    result = run(TWO.replace("refused.says", "str"), "tests/test_some.py")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([UNUSED, "test_some.py::test_widths?2? #2", "test_some.py::test_widths?3? #2"])


def test_a_test_that_is_skipped_here_keeps_its_entries(run: Run) -> None:
    run(TWO, "--update-messages")
    result = run(TWO.replace("    def test_other", "    @pytest.mark.skip\n    def test_other"))
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.no_fnmatch_line(UNUSED)


def test_an_error_is_one_line_and_keeps_the_names_of_files() -> None:
    for name in ("Größe", "報告\u3000書", "9.41.00\u202fAM", "a\u200cb", "a\u00a0b"):
        assert str(SpecExportError(f"{name} is missing")) == f"{name} is missing"
    for name in ("one\ntwo", "one\rtwo", "one\u2028two", "one\x85two", "\x1b[31mred", "\u202eback", "\ud800"):
        assert str(SpecExportError(name)).isprintable()
