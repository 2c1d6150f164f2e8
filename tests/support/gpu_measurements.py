"""Findings and measurements of `scripts/gpu_check` as they might have come out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpucheck.finding import Finding
from gpucheck.measurements import PassTime
from gpucheck.measurements.rounds import RoundTime
from gpucheck.meter import Counts
from gpucheck.report import Outcome, Report
from gpucheck.thresholds import Reads
from gpucheck.timing import Spread
from specexport.engines.cuda.driver import Gpu

GPU = Gpu("NVIDIA H200 (SXM)", (9, 0), "13.0", 140 * 2**30)
READS = Reads(weights=800_000, cache_row=1000, bandwidth=1e9)


def steady(ms: float) -> Spread:
    return Spread(ms, ms, ms, 50)


def round_time(
    k: int = 0,
    gpu: float = 1.0,
    wall: float = 1.01,
    parts: float = 1.0,
    span: int = 512,
    rule: str = "greedy",
    **counts: int,
) -> RoundTime:
    calls = Counts(**({"launches": 1, "waits": 1, "others": 0} | counts))
    return RoundTime(rule, k, span, calls, steady(gpu), steady(wall), parts)


def passes(*times: tuple[int, int, float]) -> list[PassTime]:
    return [PassTime("target", width, span, "gpu", steady(ms)) for width, span, ms in times]


def outcome(*findings: Finding, **changes: Any) -> Outcome:
    return Outcome("tiny", "fp16", findings=list(findings), finished=True, **changes)


def report(*outcomes: Outcome) -> Report:
    facts = {"gpu": {"name": GPU.name, "memory_bytes": GPU.memory}, "specexport": {"version": "0.1", "commit": "abc"}}
    return Report("tensorrt", "TensorRT 10.16", "scripts/gpu_check", facts, steady(4e12), outcomes=list(outcomes))


RIGHT, WRONG = Finding("parity", True, "1e-5 off"), Finding("ladder", False, "0.3 off")


def here(work: Any, *arguments: Any, hear: Any, seconds: float = 0.0) -> Any:
    """In place of `apart`, so that what was replaced is used."""
    return work(hear, *arguments)
