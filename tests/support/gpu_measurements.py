"""Findings and measurements of `scripts/gpu_check` as they might have come out."""

from __future__ import annotations

from typing import Any

from gpucheck.finding import Finding
from gpucheck.report import Outcome, Report
from gpucheck.timing import Spread
from specexport.engines.cuda.driver import Gpu

GPU = Gpu("NVIDIA H200 (SXM)", (9, 0), "13.0", 140 * 2**30)


def steady(ms: float) -> Spread:
    return Spread(ms, ms, ms, 50)


def outcome(*findings: Finding, **changes: Any) -> Outcome:
    return Outcome("tiny", "fp16", findings=list(findings), finished=True, **changes)


def report(*outcomes: Outcome) -> Report:
    facts = {"gpu": {"name": GPU.name, "memory_bytes": GPU.memory}, "specexport": {"version": "0.1", "commit": "abc"}}
    return Report("tensorrt", "TensorRT 10.16", "scripts/gpu_check", facts, steady(4e12), outcomes=list(outcomes))


RIGHT, WRONG = Finding("parity", True, "1e-5 off"), Finding("ladder", False, "0.3 off")


def here(work: Any, *arguments: Any, hear: Any, seconds: float = 0.0) -> Any:
    """In place of `apart`, so that what was replaced is used."""
    return work(hear, *arguments)
