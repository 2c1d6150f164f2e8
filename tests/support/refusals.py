"""What a test says of an error: its type, code and field, and facts that the message holds, such as a name or a number,
but never its wording.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from specexport.errors import SpecExportError

Raised = TypeVar("Raised", bound=BaseException)
Fact = str | Collection[object] | None  # one of several: names of parameters, or arguments of a command


@contextmanager
def refused(
    kind: type[Raised] | tuple[type[Raised], ...], *facts: object, code: Fact = None, field: Fact = None
) -> Iterator[pytest.ExceptionInfo[Raised]]:
    """`with refused(BundleError, "target.onnx", code="file_changed"): ...`; else the class's code and field."""
    with pytest.raises(kind) as caught:
        yield caught
    check(caught.value, *facts, code=code, field=field)


def check(error: BaseException, *facts: object, code: Fact = None, field: Fact = None) -> None:
    """An error and its facts. code, field: by default those of its class."""
    says(str(error), *facts)
    if isinstance(error, SpecExportError):
        _same("code", error.code, code or type(error).code)
        _same("field", error.field, field or type(error).field)
    elif hasattr(error, "param"):  # the server's `ApiError`, whose packages need not be there
        _same("code", error.code, code or "invalid_value")  # type: ignore[attr-defined]
        _same("param", error.param, field)


def _same(name: str, found: str | None, expected: Fact) -> None:
    several = (expected,) if expected is None or isinstance(expected, str) else expected
    assert found in map(_parameter, several), f"found the {name} {found!r}, expected {expected!r}"


def says(message: str, *facts: object) -> None:
    """The message is one line without a traceback, and holds the facts."""
    line = message.strip()
    assert line, "found no message, expected one line"
    assert len(line.splitlines()) == 1, line
    assert "Traceback" not in line
    missing = [fact for fact in facts if str(fact) not in line]
    assert not missing, (missing, line)


def _parameter(option: object) -> object:
    """The name in code of an option of a command; anything else as it is."""
    named = isinstance(option, str) and option.startswith("--")
    return str(option).removeprefix("--").replace("-", "_") if named else option
