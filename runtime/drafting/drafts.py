"""The draft models of a session: the bundle's first from the start, others once they are first used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from threading import RLock

from ...bundle import Bundle
from ...engines.base import Engine, OpenedDraft
from ...errors import ParameterError, SessionClosedError, SpecExportError
from ..state.context import CachedDecoder, Context
from .names import FIRST, LOOKUP_NAMES, guesser_of, model_of
from .translate import draft_decoder


def make_context(bundle: Bundle, engine: Engine) -> Context:
    """A context over the target and the first draft."""
    target = CachedDecoder(engine.target, bundle.manifest.contract.prompt_chunk)
    return Context(target, _cached(bundle, engine) if engine.draft is not None else None)


@dataclass
class Drafts:
    """opened: by name, without the first. running: held while a draft is opened; the session's own lock, so that the
    session is not closed meanwhile.
    """

    bundle: Bundle
    engine: Engine
    context: Context
    opened: dict[str, OpenedDraft] = field(default_factory=dict)
    running: RLock = field(default_factory=RLock)
    closed: bool = False

    def use(self, drafter: str | None) -> None:
        """Let the context draft with the model of `drafter` (a name from `runnable_drafter`), which is opened if
        necessary.

        None for plain decoding. Raises `ParameterError` if the engine runs only the first draft, and if the draft is no
        longer in the bundle, `SessionClosedError`, and the errors of opening a draft.
        """
        model, guesser = (model_of(drafter), guesser_of(drafter)) if drafter is not None else (None, None)
        if guesser is not None and guesser != FIRST and guesser not in LOOKUP_NAMES:
            self.open(guesser)
        if model is not None and model != FIRST:
            self.open(model)
            self.context.drafts_with = model
        else:
            self.context.drafts_with = None

    def open_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.open(name)

    def open(self, name: str) -> OpenedDraft:
        """The draft `name`, `model` for the first; raises as `use` does."""
        if name == FIRST:
            assert self.engine.draft is not None
            return OpenedDraft(self.engine.draft, self.engine.head)
        with self.running:
            if name not in self.opened:
                if self.closed:
                    raise SessionClosedError("this session was closed; load the bundle again")
                self.opened[name] = self._open(name)
            return self.opened[name]

    def _open(self, name: str) -> OpenedDraft:
        if self.engine.open_draft is None:
            first = self.bundle.manifest.draft_name
            raise ParameterError(
                f"{self.engine.name} runs only the bundle's first draft, {first!r} (drafter 'model'), "
                f"not {name!r}; additional drafts run with --engine onnxruntime",
                "drafter",
            )
        bundle = self.bundle.with_draft(name)
        assert bundle.manifest.draft is not None
        try:
            opened = self.engine.open_draft(bundle.manifest.draft)
            cached = _cached(bundle, replace(self.engine, draft=opened.decoder))
        except (SpecExportError, OSError):
            if all(bundle.path(file).exists() for file in self.bundle.manifest.more_drafts[name].files()):
                raise
            raise ParameterError(
                f"drafter {name!r} is no longer in the bundle: it was removed or replaced after this session loaded "
                "it; name another drafter, or load the bundle again",
                "drafter",
            ) from None
        self.context.more = {**self.context.more, name: cached}  # a new dict: another thread may walk the old one
        return opened


def _cached(bundle: Bundle, engine: Engine) -> CachedDecoder:
    decoder = draft_decoder(bundle, engine)
    assert decoder is not None
    contract = bundle.manifest.contract
    return CachedDecoder(decoder, contract.prompt_chunk, leaves=2, widest=contract.of("draft").widest_step)
