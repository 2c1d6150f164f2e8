"""Engines by name. A module is imported only when its engine is used."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import cast

from ..bundle import Bundle
from ..errors import EngineError, ParameterError
from .base import Availability, Engine, EngineModule
from .catalogue import ENGINES, LIBRARIES, info_of, lacks_states

LOG = logging.getLogger("specexport")
# Codes of errors that say before anything is loaded that this host cannot run this bundle on an engine it has.
CANNOT_RUN = ("engine_unavailable", "not_built_for_engine", "incompatible_plan")


def engine_module(name: str) -> EngineModule:
    """The module of the engine `name`. Raises `EngineError` for an unknown name."""
    return cast(EngineModule, import_module(f".{info_of(name).module}", __package__))


def load_engine(bundle: Bundle, name: str | None = None, threads: int = 0, device: int | None = None) -> Engine:
    """Load the bundle's models on engine `name`, by default on the first of its engines on which this host can run it.

    threads: CPU threads, 0 for the engine's own choice. device: which GPU, as the driver numbers those that it shows;
    None is the first.
    Raises `EngineError` if the bundle was not built for the engine or this host cannot run it, and `ParameterError` for
    a device that is negative, or that is given for an engine on the CPU.
    """
    return _first_usable(bundle, threads, device) if name is None else _load(bundle, name, threads, device)


def _first_usable(bundle: Bundle, threads: int, device: int | None) -> Engine:
    """Raises `EngineError` that says what each engine lacks, and the error of the first that fails otherwise."""
    built, lacking, passed_over = bundle.manifest.engines, [], dict[str, EngineError]()
    for engine in built:
        if engine not in ENGINES:
            lacking.append(f"{engine} (not known to this specexport; update specexport)")
            continue
        availability = engine_module(engine).availability()
        if not availability.usable:
            lacking.append(f"{engine} ({availability.detail}; {availability.remedy})")
            continue
        try:
            loaded = _load(bundle, engine, threads, device)
        except EngineError as error:
            if error.code not in CANNOT_RUN or len(built) == 1:
                raise
            lacking.append(f"{engine} ({error})")
            passed_over[engine] = error
            continue
        for other, why in passed_over.items():
            LOG.warning("engine %s is passed over for %s: %s", other, engine, why)
        return loaded
    raise EngineError(
        f"this host can run no engine that the bundle was built for: {', '.join(lacking)}", code="engine_unavailable"
    )


def _load(bundle: Bundle, name: str, threads: int, device: int | None) -> Engine:
    module, built = engine_module(name), bundle.manifest.engines
    if device is not None and not (ENGINES[name].on_gpu and device >= 0):
        expected = "it must be 0 or more" if ENGINES[name].on_gpu else f"engine {name} runs on the CPU; leave it out"
        raise ParameterError(f"device is {device}; {expected}", "device")
    if name not in built:
        compiles = name in LIBRARIES and any(dialect in bundle.manifest.target.graphs for dialect in ("onnx", "rows"))
        remedy = (
            f"run: specexport compile {bundle.root} --engine {name}" if compiles else f"build it with --engine {name}"
        )
        raise EngineError(
            f"the bundle was built for {', '.join(built)}, not for {name}; {remedy}",
            "engine",
            code="not_built_for_engine",
        )
    if bundle.manifest.has_states and (why := lacks_states(name, bundle.manifest.contract.precision)):
        raise EngineError(f"{bundle.root} has layers that keep recurrent or convolution states, {why}")
    availability = module.availability()
    if not availability.usable:
        raise EngineError(f"engine {name}: {availability.detail}; {availability.remedy}", code="engine_unavailable")
    return module.load(bundle, threads, device or 0)


def availabilities() -> dict[str, Availability]:
    """By engine, whether this host can run it."""
    return {name: engine_module(name).availability() for name in ENGINES}
