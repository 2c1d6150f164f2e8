"""What TensorRT tells of a build, as steps of a display."""

from __future__ import annotations

from specexport.engines.tensorrt.monitor import STEPS_PER_GRAPH, Monitor


def make() -> tuple[Monitor, list[str]]:
    steps: list[str] = []
    return Monitor(steps.append), steps


def test_steps_come_as_their_part_is_done() -> None:
    monitor, steps = make()
    monitor.phase_start("Building", None, 2)
    assert steps == ["building"]  # the first begins with the build
    monitor.phase_start("Tactics", "Building", 5)
    for index in range(5):
        assert monitor.step_complete("Tactics", index)
        assert len(steps) == 1 + (index + 1)  # a fifth of one half: one of ten
    assert monitor.step_complete("Building", 0)
    assert len(steps) == 6
    assert set(steps[1:]) == {"tactics"}
    monitor.step_complete("Building", 1)
    assert len(steps) == STEPS_PER_GRAPH


def test_never_more_steps_than_promised_nor_a_step_back() -> None:
    monitor, steps = make()
    for name, count in (("one", 1), ("two", 3), ("one", 2)):
        monitor.phase_start(name, None, count)
        for index in range(count + 2):  # more than it said
            monitor.step_complete(name, index)
    monitor.step_complete("never started", 3)
    monitor.phase_start("empty", None, 0)
    monitor.phase_start("orphan", "never started", 1)
    assert len(steps) == STEPS_PER_GRAPH
