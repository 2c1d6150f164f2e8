"""A bundle on TensorRT or TensorRT-RTX: plans, decoders and rounds on one device. The two differ by a library and its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle import Bundle, ModelSpec, Plan, Role
from ..errors import EngineError
from .base import Arrays, Engine, RunGraph
from .device import ALIGNMENT, Address, Device
from .device_round import DeviceRounds
from .page import Page
from .tensorrt_api import Library
from .tensorrt_decoder import TensorRTDecoder
from .tensorrt_plan import LoadedPlan

Settings = Callable[[Any, Path], Any]


def load_bundle(
    name: str, bundle: Bundle, plans: dict[str, Plan], library: Library, device: Device, settings: Settings | None = None
) -> Engine:
    """plans: by the path of the graph that each was compiled from. settings: as `LoadedPlan` takes them.

    Closes the device when something fails. Raises `EngineError`.
    """
    try:
        return _load(name, bundle, plans, library, device, settings)
    except BaseException:
        device.close()
        raise


def _load(name: str, bundle: Bundle, plans: dict[str, Plan], library: Library, device: Device, settings: Settings | None) -> Engine:
    manifest = bundle.manifest
    contract = manifest.contract
    loaded = {graph: LoadedPlan(library, bundle.path(plan.file), device, settings) for graph, plan in plans.items()}
    # Passes run one after the other, so one piece of memory serves them all.
    size = max(plan.scratch_bytes for plan in loaded.values())
    scratch = device.allocate(max(size, ALIGNMENT), "what passes need while they run")

    def decoder(role: Role, spec: ModelSpec) -> TensorRTDecoder:
        graph = next((graph for graph in spec.graphs.values() if graph in loaded), None)
        if graph is None:
            raise EngineError(
                f"{bundle.root} has no plan of the {role} for {name}; make it with: specexport compile {bundle.root} --engine {name}"
            )
        return TensorRTDecoder(role, loaded[graph], spec, contract, device, scratch)

    target = decoder("target", manifest.target)
    draft = decoder("draft", manifest.draft) if manifest.draft else None
    # Rounds on the device know one set of ids.
    same_ids = draft is not None and manifest.vocabulary is None and draft.vocab_size == target.vocab_size
    rules = {Path(graph).stem: plan for graph, plan in loaded.items()}
    rounds = DeviceRounds(device, contract, target, draft if same_ids else None, rules, scratch)
    rounds.warm_up()

    def open_graph(path: Path) -> RunGraph | None:
        plan = loaded.get(path.relative_to(bundle.root).as_posix())
        return None if plan is None else device_graph(plan, device, scratch)

    def close() -> None:
        for plan in loaded.values():
            plan.close()
        device.close()

    dialect = next(dialect for dialect, graph in manifest.target.graphs.items() if graph in loaded)
    return Engine(name, dialect, target, draft, open_graph, rounds, close)


def device_graph(plan: LoadedPlan, device: Device, scratch: Address) -> RunGraph:
    """A graph of fixed shapes, such as a rule's, from host arrays to host arrays."""
    inputs = Page(device, "a graph's inputs", [plan.array(name) for name in plan.inputs])
    outputs = Page(device, "a graph's outputs", [plan.array(name) for name in plan.outputs])
    slots = dict(zip((*plan.inputs, *plan.outputs), (*inputs.slots, *outputs.slots), strict=True))
    enqueue = plan.bind(0, {}, {name: slot.address for name, slot in slots.items()}, scratch)

    def run(arrays: Arrays) -> Arrays:
        for name in plan.inputs:
            slots[name].host[:] = np.ravel(arrays[name])
        inputs.send()
        enqueue()
        outputs.receive()
        device.synchronize()
        return {name: slots[name].host.reshape(plan.shape(name)).copy() for name in plan.outputs}

    return run
