"""One replica of Ray Serve: a session, and the ASGI app that serves it."""

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
