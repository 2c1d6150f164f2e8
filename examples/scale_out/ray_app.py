"""Replicas of one bundle behind Ray Serve, each of them the app of `specexport serve`.

    pip install ./kernels '.[serve,onnxruntime]' 'ray[serve]>=2.60'    # in a checkout
    cd examples/scale_out    # Ray passes the current folder on to replicas, but not --app-dir
    serve run ray_app:build bundle=/models/pair.bundle replicas=2 threads=4

Requests with one `x-session-id` go to one replica, which has that conversation's cache rows. API keys are those of
the environment variable SPECEXPORT_API_KEY on the replicas' hosts. An example to copy and change: docs/scale-out.md.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from specexport import load
from specexport.errors import EngineError
from specexport.serve import ServerSettings, create_app
from specexport.serve.settings import keys_of_host
from starlette.applications import Starlette

CONSISTENT_HASH = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"


class Replica:
    """One process with one session. Ray takes the app from it once, then checks its health periodically."""

    def __init__(self, bundle: str, engine: str | None, threads: int) -> None:
        """Raises what `specexport.load` raises; Ray shows it in the deployment's status, and tries again."""
        self.session = load(bundle, engine, threads, prompt_cache_bytes=None)
        replica = serve.get_replica_context().replica_tag
        self.served = create_app(self.session, ServerSettings(replica=replica, api_keys=keys_of_host()))
        self.served.state.service.sessions.prepare()  # so that no request waits for it

    def __serve_build_asgi_app__(self) -> Starlette:  # Ray looks for this name
        return self.served

    def check_health(self) -> None:
        """After three errors in a row Ray replaces this replica. Raises `EngineError` where `/health` is 503."""
        trouble = self.served.state.service.trouble
        if trouble is not None:
            raise EngineError(f"{trouble}; this replica must be replaced")


def build(args: dict[str, Any]) -> serve.Application:
    """args: bundle, a path on the replicas' hosts; replicas, threads (1) and gpus (0) of each; engine."""
    threads, gpus = int(args.get("threads", 1)), int(args.get("gpus", 0))
    deployment = serve.deployment(serve.ingress()(Replica)).options(
        name="specexport",
        num_replicas=int(args.get("replicas", 1)),
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
        max_ongoing_requests=2,  # one runs while the next is checked and tokenized
        max_queued_requests=32,  # in each of Ray's proxies, which answers 503 beyond that
        graceful_shutdown_timeout_s=120,  # for requests that run
        request_router_config=RequestRouterConfig(
            request_router_class=CONSISTENT_HASH,
            # other replicas that are tried while a session's own one is full
            request_router_kwargs={"num_fallback_replicas": 2},
        ),
    )
    return deployment.bind(args["bundle"], args.get("engine"), threads)
