"""One replica of Ray Serve: a session, and the app over it."""

from __future__ import annotations

from contextlib import suppress

from ray import serve
from starlette.applications import Starlette

from ...errors import EngineError, GrammarError, MissingPackageError
from ...runtime.load import load
from ...serve import create_app
from ...serve.service import Service
from .config import Config
from .metrics import RayMetrics


class Replica:
    """Made by Ray, which asks it for its app and then, again and again, for its health."""

    def __init__(self, config: Config) -> None:
        """Raises what `specexport.load` raises; Ray tells it with the deployment's status, and tries again."""
        context = serve.get_replica_context()
        budget = None if config.prompt_cache_mib is None else config.prompt_cache_mib << 20
        self.session = load(
            config.bundle_of(context.rank.rank),
            config.engine,
            config.threads,
            prompt_cache_bytes=budget,
            chat_template=config.chat_template,
        )
        self.session.prepare()  # nobody's request waits for it
        with suppress(MissingPackageError, GrammarError):  # a request with a grammar will be told
            self.session.prepare_grammar()
        self._app = create_app(self.session, config.settings(context.replica_tag, config.keys()))
        self._service: Service = self._app.state.service
        self._metrics = RayMetrics(self._service.metrics.registry)

    def __serve_build_asgi_app__(self) -> Starlette:  # Ray's name
        return self._app

    def check_health(self) -> None:
        """By Ray, every `health_period`; what it raises thrice in a row ends this replica, and another one starts."""
        self._metrics.publish()
        trouble = self._service.trouble
        if trouble is not None:
            raise EngineError(f"{trouble}; this replica must be replaced")
