"""The Ray Serve application."""

from __future__ import annotations

from typing import Any

import msgspec
from ray import serve
from ray.serve.config import RequestRouterConfig

from .config import Config
from .replica import Replica

DEPLOYMENT = "specexport"
CONSISTENT_HASH = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
PATIENCE = 30.0  # timeout of a health check in seconds; a health check does not wait for the engine


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
