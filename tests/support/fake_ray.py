"""What the adapter needs of `ray.serve`, without Ray: options are kept, metrics are numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MODULES = ("application",)  # which import ray


@dataclass
class FakeDeployment:
    made_of: Any
    chosen: dict[str, Any] = field(default_factory=dict)
    bound: tuple[Any, ...] = ()

    def options(self, **options: Any) -> FakeDeployment:
        return FakeDeployment(self.made_of, options)

    def bind(self, *arguments: Any) -> FakeDeployment:
        return FakeDeployment(self.made_of, self.chosen, arguments)


class FakeMetric:
    """Keeps Ray's rules: declared labels only, a counter grows. `sent`: by name and labels."""

    sent: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert name.replace("_", "").isalnum(), name
        assert description
        self.name, self.tag_keys = name, tag_keys

    def _key(self, tags: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        assert set(tags) == set(self.tag_keys)
        return self.name, tuple(sorted(tags.items()))


class FakeCounter(FakeMetric):
    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        key = self._key(tags)
        self.sent[key] = self.sent.get(key, 0.0) + value


class FakeGauge(FakeMetric):
    def set(self, value: float, tags: dict[str, str]) -> None:
        self.sent[self._key(tags)] = value


class FakeRay:
    """In the place of the module until the test ends. rank: of the replica that is made next."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rank = 0
        self.sent: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        ray, serve, config, metrics = (
            ModuleType(name) for name in ("ray", "ray.serve", "ray.serve.config", "ray.serve.metrics")
        )
        ray.serve = serve  # type: ignore[attr-defined]
        serve.config, serve.metrics = config, metrics  # type: ignore[attr-defined]
        serve.deployment = FakeDeployment  # type: ignore[attr-defined]
        serve.ingress = lambda: lambda replica: replica  # type: ignore[attr-defined]
        serve.get_replica_context = self._context  # type: ignore[attr-defined]
        config.RequestRouterConfig = SimpleNamespace  # type: ignore[attr-defined]
        for name, kind in (("Counter", FakeCounter), ("Gauge", FakeGauge)):
            setattr(metrics, name, type(name, (kind,), {"sent": self.sent}))
        for module in (ray, serve, config, metrics):
            patch.setitem(sys.modules, module.__name__, module)
        for name in ("", *(f".{module}" for module in MODULES)):  # imported anew, with these
            patch.delitem(sys.modules, f"specexport.integrations.ray{name}", raising=False)

    def _context(self) -> SimpleNamespace:
        return SimpleNamespace(rank=SimpleNamespace(rank=self.rank), replica_tag=f"replica{self.rank}")
