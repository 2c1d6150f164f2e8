"""Measurements of `scripts/gpu_check` as they might have come out."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpucheck.measurements import PassTime
from gpucheck.measurements.rounds import RoundTime
from gpucheck.meter import Counts
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
