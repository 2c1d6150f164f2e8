"""The stand-in for TensorRT has no name and takes no argument that the real one has not."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from support import fake_tensorrt
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT
from support.fake_tensorrt_types import OF_RTX, SINCE_10_15

real = pytest.importorskip("tensorrt_rtx")
KINDS = ("RtxRuntime", "ICudaEngine", "IExecutionContext", "IRuntimeConfig", "IRuntimeCache")


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_arguments_are_the_real_ones(kind: str) -> None:
    ours, theirs = getattr(fake_tensorrt, kind), getattr(real, kind.removeprefix("Rtx"))
    for name in public(ours):
        documented = getattr(theirs, name).__doc__ or ""
        declared = re.findall(rf"^\d?\.? ?{name}\((.*)\) ->", documented, re.MULTILINE)
        if declared and name != "create_execution_context":
            given = [
                parameter for parameter in inspect.signature(getattr(ours, name)).parameters if parameter != "self"
            ]
            assert given in [re.findall(r"(?:^|, )(\w+): ", overload)[1:] for overload in declared], name


def test_what_some_lack_is_in_the_real_one() -> None:
    assert [name for name in public(FakeTensorRT(FakeDevice(), rtx=True)) if not hasattr(real, name)] == []
    names = {name for kind in KINDS for name in public(getattr(real, kind.removeprefix("Rtx")))} | set(dir(real))
    assert names >= OF_RTX | SINCE_10_15
