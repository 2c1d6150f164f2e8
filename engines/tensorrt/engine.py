"""A bundle on TensorRT or TensorRT-RTX: plans, decoders and rounds on one device.

The two engines differ only in the library and its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle import Bundle, Contract, DraftSpec, ModelSpec, Plan, Role
from ...errors import EngineError
from ..base import Arrays, Engine, OpenedDraft, RunGraph
from ..cuda.protocol import ALIGNMENT, Address, Device
from ..cuda.staging import Page
from ..shared_vocabulary import load_maps
from .api import Library, plans_of
from .decoder import TensorRTDecoder
from .hidden import DeviceReader
from .plan import LoadedPlan, check_fit
from .round_graph import DeviceRounds

class OneSpan(Contract):
    @property
    def spans(self) -> tuple[int, ...]:
        return (self.capacity,)


Settings = Callable[[Any, Path], Any]


def load_bundle(
    name: str, bundle: Bundle, library: Library, device: Device, settings: Settings | None = None
) -> Engine:
    """Load the plans that `bundle` has for the engine `name`. settings: as in `LoadedPlan`.

    Raises `EngineError`. If anything fails, everything is released, `device` included.
    """
    loaded: dict[str, LoadedPlan] = {}  # by the path of the graph that it was compiled from

    is_open = True

    def close() -> None:
        nonlocal is_open
        if not is_open:
            return
        is_open = False
        with ExitStack() as stack:
            stack.callback(device.close)
            with suppress(EngineError):  # after a fault of the GPU every call fails
                stack.enter_context(device.entered())
                device.synchronize()  # contexts may still be running, after an interrupt
            for plan in loaded.values():
                plan.close()

    try:
        plans = plans_of(bundle, name)
        _check_complete(name, bundle, plans)
        with device.entered():  # TensorRT asks the current device
            for plan in plans.values():
                check_fit(bundle, plan, library, device)
            for graph, plan in plans.items():
                loaded[graph] = LoadedPlan(library, bundle.path(plan.file), device, settings)
            return _engine(name, bundle, device, loaded, close)
    except BaseException:
        close()
        raise


def _check_complete(name: str, bundle: Bundle, plans: Mapping[str, Plan]) -> None:
    """Raises `EngineError` if a model or a rule has no plan."""
    manifest = bundle.manifest
    graphs: list[tuple[str, dict[str, str]]] = [(role, model.graphs) for role, model in manifest.pair.items()]
    graphs += [("fuse", model.reads.fuse) for model in manifest.pair.values() if model.reads and model.reads.fuse]
    models = (name for name, by_dialect in graphs if not set(by_dialect.values()) & set(plans))
    rules = (Path(rule.graph).stem for rule in manifest.rules if rule.graph not in plans)
    missing = [*models, *rules]
    if missing:
        again = f"specexport compile {bundle.root} --engine {name}"
        raise EngineError(
            f"{bundle.root} has no plan of {', '.join(missing)} for {name}; make it with: {again}",
            code="not_built_for_engine",
        )


def _engine(
    name: str, bundle: Bundle, device: Device, loaded: Mapping[str, LoadedPlan], close: Callable[[], None]
) -> Engine:
    manifest = bundle.manifest
    contract = manifest.contract
    if not any("columns" in plan.inputs for plan in loaded.values()):
        contract = OneSpan(**{field.name: getattr(contract, field.name) for field in fields(contract)})
    # Passes run one after the other, so they share one block of memory.
    size = max(plan.scratch_bytes for plan in loaded.values())
    scratch = device.allocate(max(size, ALIGNMENT), "what passes need while they run")

    def decoder(role: Role, spec: ModelSpec) -> TensorRTDecoder:
        plan = next(loaded[graph] for graph in spec.graphs.values() if graph in loaded)
        reader = None
        if (reads := spec.reads) is not None:
            fuse = next((loaded[graph] for graph in reads.fuse.values() if graph in loaded), None)
            reader = DeviceReader(reads, manifest.target.tap_width, contract, device, scratch, fuse)
        return TensorRTDecoder(role, plan, spec, contract, device, scratch, reader)

    target = decoder("target", manifest.target)
    first = manifest.drafts[0] if manifest.drafts else None
    draft = decoder("draft", first.model) if first else None
    # Rounds on the device need one set of token ids, which a draft that reads hidden states has.
    same_ids = first is not None and first.shared_vocabulary is None and first.model.vocab_size == target.vocab_size
    columns = _columns(bundle, first, target.vocab_size) if first is not None else None
    drafting = draft if same_ids or columns is not None else None
    rules = {Path(graph).stem: plan for graph, plan in loaded.items()}
    rounds = None
    if "select_greedy" in rules:
        rounds = DeviceRounds(device, contract, target, drafting, rules, scratch, columns)
        rounds.warm_up()
    for model in filter(None, (target, draft)):
        model.warm_up()

    def open_graph(path: Path) -> RunGraph | None:
        plan = loaded.get(path.relative_to(bundle.root).as_posix())
        return None if plan is None else device_graph(plan, device, scratch)

    dialect = next(dialect for dialect, graph in manifest.target.graphs.items() if graph in loaded)
    opened = OpenedDraft(draft, reader=draft.reader) if draft else None
    return Engine(name, dialect, target, opened, open_graph, rounds, close, device=device.index, taps=target.taps)


def _columns(bundle: Bundle, draft: DraftSpec, target_size: int) -> NDArray[np.int64] | None:
    """As of `DeviceRounds`, of a draft that reads the target's ids and proposes some of them; else None."""
    vocabulary, model = draft.shared_vocabulary, draft.model
    if vocabulary is None or model.reads is None:
        return None
    maps = bundle.path(vocabulary.maps)
    _, (target_ids, draft_ids) = load_maps(maps, vocabulary, target_size, model.vocab_size, target_size)
    columns = np.full(target_size, -1)
    columns[target_ids] = draft_ids
    return columns


def device_graph(plan: LoadedPlan, device: Device, scratch: Address) -> RunGraph:
    """A function that runs a graph of fixed shapes, such as a rule's, on arrays of the host."""
    with device.entered():
        inputs = Page(device, "a graph's inputs", [plan.array(name) for name in plan.inputs])
        outputs = Page(device, "a graph's outputs", [plan.array(name) for name in plan.outputs])
        slots = dict(zip((*plan.inputs, *plan.outputs), (*inputs.slots, *outputs.slots), strict=True))
        enqueue = plan.bind(0, {}, {name: slot.address for name, slot in slots.items()}, scratch)

    def run(arrays: Arrays) -> Arrays:
        for name in plan.inputs:
            slots[name].host[:] = np.ravel(arrays[name])
        with device.entered():
            inputs.send()
            enqueue()
            outputs.receive()
            device.synchronize()
        return {name: slots[name].host.reshape(plan.shape(name)).copy() for name in plan.outputs}

    return run
