"""The Ray Serve application, and its replicas: a session, the ASGI app that serves it, and its metrics in Ray's.

Prometheus scrapes Ray's hosts, not each replica, so the series of a replica's `/metrics` are copied.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample
from ray import serve
from ray.serve import metrics
from ray.serve.config import RequestRouterConfig
from starlette.applications import Starlette

from ...errors import EngineError, GrammarError, MissingPackageError
from ...runtime.load import load
from ...serve import create_app
from ...serve.service import Service
from .config import Config

DEPLOYMENT = "specexport"
CONSISTENT_HASH = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
PATIENCE = 30.0  # timeout of a health check in seconds; a health check does not wait for the engine
CREATED = "_created"  # when a series began; not copied


def build(args: dict[str, Any]) -> Any:
    """The `ray.serve.Application` for `import_path: specexport.integrations.ray:build`.

    args: the fields of `Config`. Raises `ParameterError`.
    """
    config = Config.of(args)
    deployment = serve.deployment(serve.ingress()(Replica))
    return deployment.options(**_options(config)).bind(config)


def _options(config: Config) -> dict[str, Any]:
    options: dict[str, Any] = {
        "name": DEPLOYMENT,
        "ray_actor_options": {"num_cpus": config.threads, "num_gpus": config.gpus},
        "max_ongoing_requests": config.max_ongoing_requests,
        "max_queued_requests": config.max_queued_requests,
        "health_check_period_s": config.health_period,
        "health_check_timeout_s": PATIENCE,
        "graceful_shutdown_timeout_s": config.drain_timeout,
    }
    if config.autoscaling is None:
        options["num_replicas"] = config.replicas
    else:
        options["autoscaling_config"] = msgspec.structs.asdict(config.autoscaling)
    if config.sticky:
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=CONSISTENT_HASH, request_router_kwargs={"num_fallback_replicas": config.fallbacks}
        )
    return options


class Replica:
    """Created by Ray, which gets the app from it once and then checks its health periodically."""

    def __init__(self, config: Config) -> None:
        """Raises what `specexport.load` raises; Ray shows it in the deployment's status, and tries again."""
        context = serve.get_replica_context()
        budget = None if config.prompt_cache_mib is None else config.prompt_cache_mib << 20
        self.session = load(
            config.bundle_of(context.rank.rank),
            config.engine,
            config.threads,
            prompt_cache_bytes=budget,
            chat_template=config.chat_template,
        )
        self.session.prepare()  # so that no request waits for it
        with suppress(MissingPackageError, GrammarError):  # requests with a grammar will get the error
            self.session.prepare_grammar()
        self._app = create_app(self.session, config.settings(context.replica_tag, config.keys()))
        self._service: Service = self._app.state.service
        self._metrics = RayMetrics(self._service.metrics.registry)

    def __serve_build_asgi_app__(self) -> Starlette:  # Ray looks for this name
        return self._app

    def check_health(self) -> None:
        """Called by Ray every `health_period`; after three errors in a row Ray replaces this replica.

        Raises `EngineError` while requests are not answered: see `Service.trouble`.
        """
        self._metrics.publish()
        trouble = self._service.trouble
        if trouble is not None:
            raise EngineError(f"{trouble}; this replica must be replaced")


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
