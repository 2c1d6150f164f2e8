"""What Triton's `/metrics` tells of an instance, by the names that `specexport serve` has."""

from __future__ import annotations

from typing import Any

from ...runtime.state.statistics import Statistics

# By attribute of `Statistics`.
COUNTED = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were answered."),
    "emitted": ("generation_tokens", "Tokens generated."),
    "reused_tokens": ("prefix_cache_hits", "Prompt tokens whose cache rows were reused."),
    "rounds": ("iterations", "Rounds."),
    "drafted": ("spec_decode_num_draft_tokens", "Draft tokens."),
    "accepted": ("spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
}


class Counters:
    def __init__(self, backend: Any, model: str, instance: str) -> None:
        labels = {"model": model, "instance": instance}
        self._families = {
            attribute: backend.MetricFamily(
                name=f"specexport:{name}_total", description=told, kind=backend.MetricFamily.COUNTER
            )
            for attribute, (name, told) in COUNTED.items()
        }  # kept: a family that is dropped takes its metrics along
        self._metrics = {attribute: family.Metric(labels=labels) for attribute, family in self._families.items()}

    def add(self, statistics: Statistics) -> None:
        for attribute, metric in self._metrics.items():
            metric.increment(getattr(statistics, attribute))
