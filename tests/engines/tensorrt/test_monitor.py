"""What TensorRT tells of a build, as steps of a display."""

from __future__ import annotations

from threading import Thread
from time import sleep

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


def test_what_a_build_leaves_out_is_announced_at_its_end() -> None:
    monitor, steps = make()
    monitor.phase_start("Building", None, 100)
    monitor.step_complete("Building", 20)
    assert len(steps) == 3
    monitor.finish()
    monitor.finish()
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


def test_phases_side_by_side_count_by_their_parents() -> None:
    monitor, steps = make()
    monitor.phase_start("Building", None, 10)
    monitor.phase_start("left", "Building", 2)
    monitor.phase_start("right", "Building", 2)
    monitor.step_complete("left", 0)
    monitor.step_complete("left", 1)
    assert len(steps) == 2  # one of ten, whatever the other has done


def test_a_cancelled_build_is_told_to_stop() -> None:
    monitor, _ = make()
    monitor.phase_start("Building", None, 3)
    assert monitor.step_complete("Building", 0)
    monitor.cancel()
    assert not monitor.step_complete("Building", 1)
    assert not monitor.step_complete("never started", 0)


def test_threads_announce_one_after_the_other() -> None:
    inside: list[int] = []
    most: list[int] = []

    def step(name: str) -> None:
        inside.append(1)
        most.append(len(inside))
        sleep(0.002)
        inside.pop()

    monitor = Monitor(step)
    monitor.phase_start("Building", None, 40)

    def steps(part: int) -> None:
        for step in range(part, 40, 4):
            monitor.step_complete("Building", step)

    threads = [Thread(target=steps, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * STEPS_PER_GRAPH
