"""The subject of the checks: a session on a GPU engine, with a meter around its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexport.bundle import Bundle, Role
from specexport.engines.cuda.device import CudaDevice
from specexport.engines.registry import engine_module
from specexport.runtime.session import Session

from .meter import Meter


@dataclass(frozen=True)
class Subject:
    """meter: None for an engine whose library owns the device. checkpoints: what the bundle was built from."""

    session: Session
    meter: Meter | None
    checkpoints: Mapping[Role, Path]


def open_subject(root: Path, engine: str, checkpoints: Mapping[Role, Path]) -> Subject:
    """Load the bundle on `engine`. Raises `SpecExportError`."""
    bundle = Bundle.open(root, check_digests=False)
    module: Any = engine_module(engine)
    meters: list[Meter] = []
    # An engine creates its device itself, so its class is replaced by one that counts.
    real = getattr(module, "CudaDevice", None)
    if real is None:
        return Subject(Session(bundle, module.load(bundle, 0, 0)), None, checkpoints)
    module.CudaDevice = _metered(real, meters)
    try:
        loaded = module.load(bundle, 0, 0)
    finally:
        module.CudaDevice = real
    return Subject(Session(bundle, loaded), meters[0], checkpoints)


def _metered(make: Callable[[int], CudaDevice], meters: list[Meter]) -> Callable[[int], Meter]:
    def made(index: int = 0) -> Meter:
        meters.append(Meter(make(index)))
        return meters[-1]

    return made
