"""The draft models of a session: the bundle's first from the start, others once they are first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from ...bundle import Bundle, DraftSpec
from ...engines.base import Engine, OpenedDraft
from ...errors import ParameterError, SessionClosedError, SpecExportError
from ..state.cached_decoder import CachedDecoder
from ..state.context import Context
from ..state.hidden_rows import HiddenDecoder
from .names import model_of
from .translate import draft_decoder


@dataclass
class Drafts:
    """opened: by name. running: held while a draft is opened; the session's own lock, so that the session is not closed
    meanwhile.
    """

    bundle: Bundle
    engine: Engine
    running: RLock = field(default_factory=RLock)
    closed: bool = False

    def __post_init__(self) -> None:
        manifest, contract = self.bundle.manifest, self.bundle.manifest.contract
        target = CachedDecoder(self.engine.target, contract.prompt_chunk, widest=contract.widest_step)
        self.context = Context(target, drafts_with=manifest.first_draft, taps=self.engine.taps)
        self.opened = dict[str, OpenedDraft]()
        if self.engine.draft is not None:
            self._add(manifest.drafts[0], self.engine.draft)

    @property
    def first(self) -> str:
        """The one that drafts by default, `NO_DRAFT` in a bundle without one."""
        return self.bundle.manifest.first_draft

    @property
    def names(self) -> tuple[str, ...]:
        """The drafts that the engine runs, the first draft first."""
        every = self.bundle.manifest.draft_names
        return every if self.engine.open_draft is not None else every[:1]

    def use(self, drafter: str | None) -> None:
        """Let the context draft with the model of `drafter` (a name from `check_drafter`), which is opened if
        necessary.

        None for plain decoding. Raises `ParameterError` if the engine runs only the first draft, `SessionClosedError`,
        and the errors of opening a draft.
        """
        model = model_of(drafter) if drafter is not None else None
        if model is not None:
            self.open(model)
        self.context.drafts_with = model or self.first

    def open(self, name: str) -> OpenedDraft:
        if name in self.opened:
            return self.opened[name]
        with self.running:
            if name not in self.opened:
                if self.closed:
                    raise SessionClosedError("this session was closed; load the bundle again")
                self._open(self.bundle.manifest.draft_called(name))
            return self.opened[name]

    def confidence(self, name: str | None) -> Callable[[], float] | None:
        """See `OpenedDraft`; of a draft, by default the first; None if it has none. Raises as `use` does."""
        return self.open(name or self.first).confidence if self.names else None

    def _open(self, draft: DraftSpec) -> None:
        if self.engine.open_draft is None:
            raise ParameterError(
                f"{self.engine.name} runs only the bundle's first draft, {self.first!r}, not {draft.name!r}; "
                "additional drafts run with --engine onnxruntime",
                "drafter",
            )
        try:
            self._add(draft, self.engine.open_draft(draft.model))
        except (SpecExportError, OSError):
            if all(self.bundle.path(file).exists() for file in draft.files()):
                raise
            raise ParameterError(
                f"drafter {draft.name!r} is no longer in the bundle, which was replaced after this session loaded it; "
                "load the bundle again",
                "drafter",
            ) from None

    def _add(self, draft: DraftSpec, opened: OpenedDraft) -> None:
        decoder = draft_decoder(self.bundle, draft, opened.decoder, self.engine.target.vocab_size)
        contract = self.bundle.manifest.contract
        cached = CachedDecoder(decoder, contract.prompt_chunk, held_back=2)
        if (reads := draft.model.reads) is not None and opened.reader is not None:
            target = self.bundle.manifest.target
            width, columns = len(target.taps) * target.tap_width, target.columns(reads.taps)
            some = None if columns == list(range(width)) else np.array(columns)
            cached = HiddenDecoder(
                decoder,
                contract.prompt_chunk,
                widest=1 if reads.caches else contract.of("draft").widest_step,  # it writes no rows
                columns=some,
                reader=opened.reader,
                width=width,
                slots=reads.slots,
            )
        self.context.drafts = {**self.context.drafts, draft.name: cached}  # another thread may walk the old dict
        self.opened[draft.name] = opened
