"""A bundle's graphs, loaded by a library, as an engine on one device: decoders, rounds, rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import numpy as np
from numpy.typing import NDArray

from ...bundle import Bundle, Contract, DraftSpec, ModelSpec, Role
from ...errors import EngineError
from ..base import Arrays, Engine, OpenedDraft, RunGraph
from ..rules import RuleSpec, rule_specs
from ..shared_vocabulary import load_maps
from .decoder import DeviceDecoder
from .device import ALIGNMENT, Address, CudaDevice
from .hidden import DeviceReader
from .loaded_graph import LoadedGraph
from .round_graph import DeviceRounds
from .rule_kernels import RuleKernels
from .staging import Page


class OneSpan(Contract):
    """Of graphs without `columns`, whose attention finds by itself the rows that count."""

    @property
    def spans(self) -> tuple[int, ...]:
        return (self.capacity,)


def assemble(
    name: str,
    bundle: Bundle,
    device: CudaDevice,
    loaded: Mapping[str, LoadedGraph],
    close: Callable[[], None],
    on_device: bool = True,
) -> Engine:
    """The engine `name` over `loaded`, by the paths of graphs within the bundle; its passes are captured.

    on_device: whether rounds run whole on the device. Then no model may read anything on the host.
    Raises `EngineError` for too little memory.
    """
    manifest = bundle.manifest
    contract = manifest.contract
    if not any("columns" in graph.inputs for graph in loaded.values()):
        contract = OneSpan(**vars(contract))
    rules: dict[str, RuleKernels] = {}
    for spec in rule_specs(contract.max_draft_tokens) if on_device else ():
        rules[spec.name] = RuleKernels(spec, manifest.target.vocab_size, device)
    # Passes run one after the other, so they share one block of memory.
    sizes = [*(graph.scratch_bytes for graph in loaded.values()), *(rule.scratch_bytes for rule in rules.values())]
    scratch = device.allocate(max(ALIGNMENT, *sizes), "what passes need while they run")

    def decoder(role: Role, spec: ModelSpec) -> DeviceDecoder:
        graph = next(loaded[path] for path in spec.graphs.values() if path in loaded)
        reader = None
        if (reads := spec.reads) is not None:
            fuse = next((loaded[path] for path in reads.fuse.values() if path in loaded), None)
            reader = DeviceReader(reads, manifest.target.tap_width, contract, device, scratch, fuse)
        return DeviceDecoder(role, graph, spec, contract, device, scratch, reader)

    target = decoder("target", manifest.target)
    first = manifest.drafts[0] if manifest.drafts else None
    draft = decoder("draft", first.model) if first else None
    # Rounds on the device need one set of token ids, which a draft that reads hidden states has.
    same_ids = first is not None and first.shared_vocabulary is None and first.model.vocab_size == target.vocab_size
    columns = _columns(bundle, first, target.vocab_size) if first is not None else None
    drafting = draft if same_ids or columns is not None else None
    rounds = None
    if on_device:
        rounds = DeviceRounds(device, contract, target, drafting, rules, scratch, columns)
        rounds.warm_up()
    for model in filter(None, (target, draft)):
        model.warm_up()

    def open_rule(spec: RuleSpec) -> RunGraph:
        return device_graph(rules[spec.name], device, scratch)

    dialect = next(dialect for dialect, path in manifest.target.graphs.items() if path in loaded)
    opened = OpenedDraft(draft, reader=draft.reader) if draft else None
    return Engine(
        name,
        dialect,
        target,
        opened,
        open_rule if on_device else None,
        rounds,
        close,
        device=device.index,
        taps=target.taps,
    )


def release(device: CudaDevice, loaded: Mapping[str, LoadedGraph]) -> None:
    """Close the graphs, then the device. Closing again does nothing."""
    with ExitStack() as stack:
        stack.callback(device.close)
        with suppress(EngineError):  # after a fault of the GPU every call fails
            stack.enter_context(device.entered())
            device.synchronize()  # passes may still be running, after an interrupt
        for graph in loaded.values():
            graph.close()


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


def device_graph(graph: RuleKernels, device: CudaDevice, scratch: Address) -> RunGraph:
    """A function that runs a rule on arrays of the host."""
    with device.entered():
        inputs = Page(device, "a graph's inputs", [graph.array(name) for name in graph.inputs])
        outputs = Page(device, "a graph's outputs", [graph.array(name) for name in graph.outputs])
        slots = dict(zip((*graph.inputs, *graph.outputs), (*inputs.slots, *outputs.slots), strict=True))
        enqueue = graph.bind({name: slot.address for name, slot in slots.items()}, scratch)

    def run(arrays: Arrays) -> Arrays:
        for name in graph.inputs:
            slots[name].host[:] = np.ravel(arrays[name])
        with device.entered():
            inputs.send()
            enqueue()
            outputs.receive()
            device.synchronize()
        return {name: slots[name].host.reshape(graph.shape(name)).copy() for name in graph.outputs}

    return run
