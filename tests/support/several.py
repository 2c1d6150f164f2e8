"""Sessions over fake decoders with several drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specexport.bundle import Bundle, DraftSpec, ModelSpec, list_files
from specexport.engines.base import Engine, OpenedDraft
from specexport.runtime.session import Session

from .doubles import FakeDecoder, write_bundle


def several_bundle(root: Path, target: FakeDecoder, draft: FakeDecoder, more: Mapping[str, FakeDecoder]) -> Bundle:
    """`write_bundle` with the drafts `more` beside the first, whose weights are their names."""
    whole = write_bundle(root, target.contract, target.vocab_size, draft.vocab_size)
    drafts = [*whole.manifest.drafts]
    for name, decoder in more.items():
        model = replace(drafts[0].model, source=f"org/{name}", vocab_size=decoder.vocab_size)
        drafts.append(DraftSpec(name, model).inside(f"drafts/{name}-0"))
        for file in drafts[-1].files():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(name)
    return Bundle(root, replace(whole.manifest, drafts=tuple(drafts), files=list_files(root)))


def several_session(
    root: Path,
    target: FakeDecoder,
    draft: FakeDecoder,
    more: Mapping[str, FakeDecoder],
    prompt_cache_bytes: int = 0,
) -> Session:
    def open_draft(spec: ModelSpec) -> OpenedDraft:
        return OpenedDraft(more[spec.source.removeprefix("org/")])

    engine = Engine("fake", "ort", target, OpenedDraft(draft), open_draft=open_draft)
    return Session(several_bundle(root, target, draft, more), engine, prompt_cache_bytes=prompt_cache_bytes)
