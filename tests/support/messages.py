"""Messages of refusals, compared whole with `tests/messages.json`, so that tests pin no wording themselves."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

FILE = "tests/messages.json"
VARIES = {  # from run to run, from host to host, or with the versions of what is installed
    r"\.tmp-\w{8}\b": ".tmp-<random>",
    r"\d\S* standard deviations off": "<x> standard deviations off",
    r"\bnode_\w+_\d+\b": "<node>",  # torch.onnx numbers them
    r"(TensorRT-RTX) \d+(\.\d+){3}": r"\1 <version>",
}
PROPERTY = "message"  # in a report's `user_properties`, which pytest-xdist brings from a worker to its controller

Raised = TypeVar("Raised", bound=BaseException)


class Refused:
    """The fixture `refused`: `with refused(BundleError): ...` asserts the type and compares the message.

    A message is compared with that of this test in the file; a test's second one has the key `<test> #2`, and so on.
    """

    def __init__(self, item: pytest.Item, stored: Mapping[str, str] | None, places: Mapping[str, str]) -> None:
        """stored: None accepts every message. places: patterns of what runs and hosts differ in, and their names."""
        self._item, self._stored, self._places = item, stored, places
        self._count = 0

    @contextmanager
    def __call__(self, error: type[Raised] | tuple[type[Raised], ...]) -> Iterator[pytest.ExceptionInfo[Raised]]:
        with pytest.raises(error) as caught:
            yield caught
        self._compare(str(caught.value), f"{caught.type.__name__}: ")

    def says(self, message: str) -> None:
        """Compares a message that came without its exception, as from a process."""
        self._compare(message, "")

    def _compare(self, message: str, prefix: str) -> None:
        if not message.strip() or len(message.splitlines()) > 1 or "Traceback" in message:
            pytest.fail(f"found the message {message!r}, expected one line without a traceback", pytrace=False)
        for pattern, name in self._places.items():
            message = re.sub(pattern, name, message)
        self._count += 1
        key = key_of(self._item.nodeid) + (f" #{self._count}" if self._count > 1 else "")
        self._item.user_properties.append((PROPERTY, [key, prefix + message]))
        if self._stored is None or self._stored.get(key) == prefix + message:
            return
        diff = difflib.ndiff([self._stored.get(key, "(none yet)")], [prefix + message])
        told = [f"{key}: another message than in {FILE}", *(line.rstrip("\n") for line in diff)]
        told.append(f"If it is right: python -m pytest --update-messages {self._item.nodeid.split('::')[0]}")
        pytest.fail("\n".join(told), pytrace=False)


class Messages:
    """The file in one run of pytest: what it holds, and what the run found."""

    def __init__(self, config: pytest.Config) -> None:
        self.path = config.rootpath / FILE
        self.update: bool = config.getoption("update_messages")
        self.stored: dict[str, str] = flat(json.loads(self.path.read_text("utf-8"))) if self.path.exists() else {}
        self.unused: list[str] = []
        self._found: dict[str, str] = {}
        self._outcomes: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.setdefault(key_of(report.nodeid), set()).add(report.outcome)
        self._found.update(value for name, value in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(session.config, "workerinput"):
            return  # the controller has the reports of all workers
        passed = {test for test, outcomes in self._outcomes.items() if outcomes == {"passed"}}
        elsewhere = set(self._outcomes) if exitstatus == 0 and _is_whole(session.config) else None
        for key in self.stored:
            test = re.sub(r" #\d+$", "", key)
            if key not in self._found and (test in passed or (elsewhere is not None and test not in elsewhere)):
                self.unused.append(key)
        if self.update:
            kept = {key: message for key, message in self.stored.items() if key not in self.unused}
            text = json.dumps(nested(kept | self._found), indent=1, sort_keys=True, ensure_ascii=False)
            self.path.write_text(text + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unused and not self.update:
            terminalreporter.section(f"entries of {FILE} that no test uses; --update-messages removes them")
            for key in self.unused:
                terminalreporter.line(key)


def nested(messages: Mapping[str, str]) -> dict[str, Any]:
    """By file, test and parameters: a third of the file would be names that come again and again."""
    found: dict[str, Any] = {}
    for key, message in messages.items():
        file, _, test = key.partition("::")
        name, bracket, rest = test.partition("[")
        if bracket:
            found.setdefault(file, {}).setdefault(name, {})[bracket + rest] = message
        else:
            found.setdefault(file, {})[name] = message
    return found


def flat(messages: Mapping[str, Any], before: str = "", mark: str = "::") -> dict[str, str]:
    """The inverse of `nested`; whole keys, as the file had them once, stay as they are."""
    found = {}
    for name, value in messages.items():
        if isinstance(value, str):
            found[before + name] = value
        else:
            found |= flat(value, before + name + mark, "")
    return found


def key_of(nodeid: str) -> str:
    return nodeid.removeprefix("tests/")


def _is_whole(config: pytest.Config) -> bool:
    """Whether the run has all tests, so that an entry without a test is one that nobody uses."""
    narrowed = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf")
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return whole and not any(config.getoption(name, None) for name in narrowed)


MESSAGES = pytest.StashKey[Messages]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-messages", action="store_true", help=f"Write the messages of the tests that run to {FILE}."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MESSAGES] = messages = Messages(config)
    config.pluginmanager.register(messages)


@pytest.fixture
def refused(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    config = request.config
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(config, "workerinput") else base  # a worker's base lies in the run's
    places = {
        re.escape(str(tmp_path)): "<tmp>",
        re.escape(str(shared)) + r"(?:/popen-gw\d+)?/([a-z_]+)\d+\b": r"<run>/\1",  # made by `mktemp`
        re.escape(str(shared)) + r"(/popen-gw\d+)?": "<run>",
        re.escape(str(config.rootpath)): "<checkout>",
    }
    messages = config.stash[MESSAGES]
    return Refused(request.node, None if messages.update else messages.stored, places | VARIES)
