"""The counters of an instance in Triton's `/metrics`, with the names that `specexport serve` uses."""

from __future__ import annotations

from typing import Any

from ...runtime.state.statistics import Statistics

# Name and description, by attribute of `Statistics`.
COUNTED = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were answered."),
    "emitted": ("generation_tokens", "Tokens generated."),
    "reused_tokens": ("prefix_cache_hits", "Prompt tokens whose cache rows were reused."),
    "rounds": ("iterations", "Rounds."),
    "drafted": ("spec_decode_num_draft_tokens", "Draft tokens."),
    "accepted": ("spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
}


class Counters:
    """The counters of one instance."""

    def __init__(self, backend: Any, model: str, instance: str) -> None:
        labels = {"model": model, "instance": instance}
        self._families = {
            attribute: backend.MetricFamily(
                name=f"specexport:{name}_total", description=description, kind=backend.MetricFamily.COUNTER
            )
            for attribute, (name, description) in COUNTED.items()
        }  # kept, since the metrics of a family disappear with it
        self._metrics = {attribute: family.Metric(labels=labels) for attribute, family in self._families.items()}

    def add(self, statistics: Statistics) -> None:
        """Add the counts of one request."""
        for attribute, metric in self._metrics.items():
            metric.increment(getattr(statistics, attribute))
