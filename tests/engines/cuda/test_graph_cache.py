"""Work that fails; what is replayed: support/device_checks.py."""

from __future__ import annotations

import pytest
from specexport.engines.cuda.replay import Replay
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.refusals import refused


@pytest.mark.parametrize("function", [None, "cuStreamBeginCapture", "cuGraphInstantiate"])
def test_work_that_fails_leaves_no_graph(function: str | None) -> None:
    """Whether it is the work or its capture that fails: it is done as it is once more, and then replayed."""
    device, done, failing = FakeDevice(), list[str](), {function is None}
    replay = Replay(device)

    def work() -> None:
        if True in failing:
            raise EngineError("CUDA_ERROR: the pass could not be enqueued")
        device.enqueue("work", lambda: done.append("done"))

    device.driver.failures = {function: 901} if function else {}
    with refused(EngineError, "CUDA_ERROR"):
        replay.run("one", work)
    failing.clear()
    device.driver.failures.clear()
    done.clear()
    device.log.clear()
    replay.run("one", work)
    assert device.log == ["work", "wait", "capture", "captured work", "end of capture"], "done as it is, again"
    replay.run("one", work)
    assert device.log[5:] == ["launch", "wait"]
    assert done == ["done", "done"]
