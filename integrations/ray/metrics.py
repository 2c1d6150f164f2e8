"""The series of a replica's `/metrics` as metrics of Ray: Prometheus scrapes Ray's hosts, not each replica."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample
from ray.serve import metrics

CREATED = "_created"  # when a series began; not copied


class RayMetrics:
    """Copies the series of one registry; Ray adds the application, the deployment and the replica to their labels.

    Names have _ instead of the colon, and Ray adds the prefix `ray_`. Ray cannot copy a histogram, so its buckets, sums
    and counts are gauges with the names that they have in Prometheus, whose functions treat them as a histogram.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._copies: dict[str, Any] = {}
        self._counted: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def publish(self) -> None:
        """Copy the current values; Ray exports them by itself."""
        for family in self._registry.collect():
            for sample in family.samples:
                if family.type == "counter" and not sample.name.endswith(CREATED):
                    self._count(family.name, family.documentation, sample)
                elif family.type != "counter" and not sample.name.endswith(CREATED):
                    self._copy(metrics.Gauge, sample.name, family.documentation, sample).set(
                        sample.value, dict(sample.labels)
                    )

    def _count(self, name: str, description: str, sample: Sample) -> None:
        counter = self._copy(metrics.Counter, name, description, sample)  # Ray adds _total itself
        key = (name, tuple(sorted(sample.labels.items())))
        more = sample.value - self._counted.get(key, 0.0)
        if more > 0:
            counter.inc(more, dict(sample.labels))
            self._counted[key] = sample.value

    def _copy(self, kind: Any, name: str, description: str, sample: Sample) -> Any:
        if name not in self._copies:
            self._copies[name] = kind(name.replace(":", "_"), description, tuple(sample.labels))
        return self._copies[name]
