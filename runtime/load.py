"""From a bundle's folder to a session."""

from __future__ import annotations

import os
from pathlib import Path

from ..bundle import Bundle
from ..engines.registry import load_engine
from ..errors import ParameterError
from .hub import local_bundle
from .policy.files import calibrated_threads
from .sampling.options import Flag, instance, whole_number
from .session import Session
from .state.prompt_cache import usual_budget
from .text.encode import PromptEncoder


def load(
    path: str | os.PathLike[str],
    engine: str | None = None,
    threads: int = 0,
    check_digests: bool = True,
    policy: bool = True,
    device: int | None = None,
    prompt_cache_bytes: int | None = 0,
    chat_template: str | os.PathLike[str] | None = None,
) -> Session:
    """Load a bundle from a folder, or by its name on the Hugging Face hub (`org/name` or `org/name@revision`).

    engine: a name from `specexport doctor`; by default the first engine of the bundle that this host can run. threads:
    of the CPU engine; 0 takes the number in this host's costs.json (if `policy`), else the engine's own choice. device:
    index of the GPU among those that `CUDA_VISIBLE_DEVICES` leaves; by default the first.

    check_digests: compare every file's SHA-256 with the manifest, about a second per 1.5 GB. policy: follow the
    bundle's policy.json, or adapt to measured costs if there is none for this engine; False drafts the maximum every
    round. prompt_cache_bytes: host memory for cache rows of earlier sequences, so that alternating conversations
    prefill only what is new; None means 512 MiB on a CPU and 0 on a GPU. chat_template: a file that replaces the
    bundle's chat template.

    Raises `BundleError`, `EngineError`, `ParameterError`.
    """
    path = instance("path", path, str, os.PathLike)
    check_digests, policy = Flag().check("check_digests", check_digests), Flag().check("policy", policy)
    template = None if chat_template is None else Path(instance("chat_template", chat_template, str, os.PathLike))
    budget = None if prompt_cache_bytes is None else whole_number("prompt_cache_bytes", prompt_cache_bytes)
    if budget is not None and budget < 0:
        raise ParameterError(f"prompt_cache_bytes is {budget}; it must be 0 (none) or more", "prompt_cache_bytes")
    threads = whole_number("threads", threads)
    device = None if device is None else whole_number("device", device)
    bundle = Bundle.open(local_bundle(path), check_digests)
    if policy and not threads:
        threads = calibrated_threads(bundle, engine, device or 0)
    encoder = PromptEncoder(bundle, template)
    loaded = load_engine(bundle, engine, threads, device)
    try:
        budget = usual_budget(loaded.name) if budget is None else budget
        session = Session(bundle, loaded, threads, policy, budget, encoder)
    except BaseException:
        loaded.close()
        raise
    if policy:
        session.adapt()
    return session
