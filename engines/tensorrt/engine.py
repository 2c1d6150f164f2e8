"""A bundle on TensorRT or TensorRT-RTX: plans, decoders and rounds on one device.

The two engines differ only in the library and its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...bundle import Bundle, Plan
from ...errors import EngineError
from ..base import Engine
from ..cuda.device import CudaDevice
from ..cuda.engine import assemble, release
from .api import Library, plans_of
from .plan import LoadedPlan, check_fit

Settings = Callable[[Any, Path], Any]


def load_bundle(
    name: str, bundle: Bundle, library: Library, device: CudaDevice, settings: Settings | None = None
) -> Engine:
    """Load the plans that `bundle` has for the engine `name`. settings: as in `LoadedPlan`.

    Raises `EngineError`. If anything fails, everything is released, `device` included.
    """
    loaded: dict[str, LoadedPlan] = {}  # by the path of the graph that it was compiled from
    close = partial(release, device, loaded)
    try:
        plans = plans_of(bundle, name)
        _check_complete(name, bundle, plans)
        with device.entered():  # TensorRT asks the current device
            for plan in plans.values():
                check_fit(bundle, plan, library, device)
            for graph, plan in plans.items():
                loaded[graph] = LoadedPlan(library, bundle.path(plan.file), device, settings)
            return assemble(name, bundle, device, loaded, close)
    except BaseException:
        close()
        raise


def _check_complete(name: str, bundle: Bundle, plans: Mapping[str, Plan]) -> None:
    """Raises `EngineError` if a model has no plan."""
    manifest = bundle.manifest
    graphs: list[tuple[str, dict[str, str]]] = [(role, model.graphs) for role, model in manifest.pair.items()]
    graphs += [("fuse", model.reads.fuse) for model in manifest.pair.values() if model.reads and model.reads.fuse]
    missing = [name for name, by_dialect in graphs if not set(by_dialect.values()) & set(plans)]
    if missing:
        again = f"specexport compile {bundle.root} --engine {name}"
        raise EngineError(
            f"{bundle.root} has no plan of {', '.join(missing)} for {name}; make it with: {again}",
            code="not_built_for_engine",
        )
