"""Engines by name. A module is imported only when its engine is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ..bundle import Bundle
from ..errors import EngineError
from .base import Availability, Engine, EngineModule

# name -> module with `load` and `availability`
ENGINES = {
    "onnxruntime": "onnxruntime.cpu",
    "onnxruntime-cuda": "onnxruntime.cuda",
    "tensorrt": "tensorrt.enterprise",
    "tensorrt-rtx": "tensorrt.rtx",
}

# engine -> the library that compiles plans for it
LIBRARIES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}


def engine_module(name: str) -> EngineModule:
    """Raises `EngineError` for a name that no engine has."""
    if name not in ENGINES:
        raise EngineError(f"there is no engine {name!r}; the engines are {', '.join(ENGINES)}")
    return cast(EngineModule, import_module(f".{ENGINES[name]}", __package__))


def load_engine(bundle: Bundle, name: str | None = None, threads: int = 0) -> Engine:
    """Load the bundle's models on engine `name`, or on the first one of the bundle that this host can run.

    Raises `EngineError` when the bundle was not built for the engine or the host cannot run it.
    """
    built = bundle.manifest.engines
    if name is None:
        usable = [engine for engine in built if engine in ENGINES and engine_module(engine).availability().usable]
        if not usable:
            raise EngineError(
                f"the bundle was built for {', '.join(built)}, none of which this host can run; see: specexport doctor"
            )
        name = usable[0]
    module = engine_module(name)
    if name not in built:
        remedy = (
            f"run: specexport compile {bundle.root} --engine {name}"
            if name in LIBRARIES
            else f"build it with --engine {name}"
        )
        raise EngineError(f"the bundle was built for {', '.join(built)}, not for {name}; {remedy}")
    found = module.availability()
    if not found.usable:
        raise EngineError(f"engine {name}: {found.detail}; {found.remedy}")
    return module.load(bundle, threads)


def availabilities() -> dict[str, Availability]:
    return {name: engine_module(name).availability() for name in ENGINES}
