"""What every route of one app shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from time import monotonic
from typing import Any, TypeVar

import msgspec

from ..errors import ParameterError
from ..runtime.hub import bundle_name
from ..runtime.session import Session
from ..version import VERSION
from . import checks
from .engine.async_session import AsyncSession
from .metrics import Metrics
from .settings import ServerSettings
from .wire.answers import Model
from .wire.errors import ApiError
from .wire.logprobs import TokenTexts

SHOWN_DIGITS = 10
T = TypeVar("T")
MAX_FAILURES = 3  # in a row: a single one may be caused by its request, such as logits that are not numbers


class Service:
    """One bundle, one model, one queue."""

    def __init__(self, sessions: AsyncSession, settings: ServerSettings, openapi: Mapping[str, Any]) -> None:
        session = sessions.session
        self.sessions, self.settings, self.session = sessions, settings, session
        self.openapi = msgspec.json.encode(openapi)
        self.texts = TokenTexts(session.tokenizer)
        sessions.longest_token = self.texts.longest
        self.created = int(time.time())
        self.names = settings.names or (checks.model("model", bundle_name(session.bundle.root)),)
        self.fingerprint = f"fp_{_digest(session)}-{session.engine.name}"
        policy, thread = session.decisions.policy, sessions.thread
        self.metrics = Metrics(settings.metrics_prefix, self.name, policy.routes if policy is not None else ())
        self.metrics.watch(lambda: thread.running, lambda: thread.waiting, lambda: session.cache_usage)
        self.metrics.info(VERSION, session.engine.name, _digest(session))
        if (settings.max_tokens or 0) > session.capacity:
            raise ParameterError(
                f"max_tokens is {settings.max_tokens}; the bundle holds {session.capacity} tokens, the prompt "
                "included; give fewer, or build with a larger --max-seq-len",
                "max_tokens",
            )
        if settings.drafter is not None:  # one that cannot run here is refused now, and not with every request
            session.stream([0], drafter=settings.drafter).close()

    async def compile(self, work: Callable[[], T], key: str) -> T:
        """Runs `work` in a worker thread, with keys in turn; its time is counted."""
        start = monotonic()
        try:
            return await self.sessions.compilers.run(key, work)
        finally:
            self.metrics.observe(self.metrics.compiled, monotonic() - start)

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]

    def check_model(self, name: str | None) -> None:
        """Raises `ApiError` 404 for another model than this one; a name is never a path. None or "" for any."""
        if name and name not in self.names and not self.settings.any_model_name:
            reason = f"there is no model {name[:100]!r}; this server has {' and '.join(map(repr, self.names))}"
            raise ApiError("model_not_found", reason, "model")

    @cached_property
    def models(self) -> list[Model]:
        """By each of its names."""
        session, manifest = self.session, self.session.bundle.manifest
        computed = manifest.contract.precision
        meta: Mapping[str, Any] = {
            "engine": session.engine.name,
            "bundle": _digest(session),
            "precision": _stored(manifest.target.format, computed),
            "computed_in": computed,
            "max_draft_tokens": session.max_draft_tokens,
            "draft_model": bool(manifest.drafts),
            "drafts": list(manifest.draft_names),
            "draft_precision": _stored(manifest.drafts[0].model.format, computed) if manifest.drafts else None,
            "chat": self.session.chats,
            "default_temperature": self.settings.default_temperature,
            "drafter": self.settings.drafter,
            "max_tokens": self.settings.max_tokens,
        }
        return [
            Model(id=name, created=self.created, max_model_len=session.capacity, meta=dict(meta)) for name in self.names
        ]

    @property
    def trouble(self) -> str | None:
        """The reason why requests are no longer answered, None while all is well."""
        thread = self.sessions.thread
        if not thread.alive:
            return "the engine thread has ended"
        if thread.failed_in_a_row >= MAX_FAILURES:
            return f"the engine failed the last {thread.failed_in_a_row} requests"
        stalled = thread.stalled_for()
        if stalled > self.settings.stall_timeout:
            return f"the engine has been in one pass for {stalled:.0f} s"
        late = self.session.grammar_late_for()
        if late > self.settings.stall_timeout:
            return f"a grammar has been compiling for {late:.0f} s, and no other one can be"
        return None


def _stored(form: str, computed: str) -> str:
    """The format of a model's weights, in the words of `specexport inspect`."""
    return computed if form == "float" else form


def _digest(session: Session) -> str:
    """The digest of the manifest, which has every file's own."""
    manifest = session.bundle.manifest
    known = sorted((name, entry.sha256) for name, entry in manifest.files.items())
    return sha256(repr(known).encode()).hexdigest()[:SHOWN_DIGITS]
