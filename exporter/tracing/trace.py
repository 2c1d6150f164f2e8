"""Trace a causal language model into an ONNX graph that keeps the contract of `bundle/contract.py`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from ...bundle import COUNTS, FEEDBACK, FUSED, HIDDEN, CacheLayer, Contract
from ...errors import UnsupportedModelError
from ..checkpoints.half_precision import TORCH_DTYPES
from ..checkpoints.source import first_line
from ..dialects import OPSETS, ORT_DIALECTS, Dialect
from ..hidden_drafts.base import HiddenDraft
from .attention import static_cache_attention
from .complex_numbers import complex_as_pairs
from .kept_rows import KeptRows, kept_after_last_cache
from .onnx_export import export_graph
from .probe import cache_argument, cache_of, custom_attention_reason, probe_states, seen_by_attention, state_tensors
from .recurrences import OpenStates
from .states import EMITTERS, static_states
from .static_cache import StaticCache
from .taps import Undo, decoder_layers, taps_seen
from .trees import ANCESTOR, DEPTH, Tree, refuse_trees


def probe_cache(model: PreTrainedModel) -> tuple[CacheLayer, ...]:
    """Shapes of the cache, found by running two tokens through the model: no names of config fields needed.

    Of keys and values of different widths the wider one counts: the other is padded (see docs/architecture.md).
    Raises `UnsupportedModelError` when a layer keeps anything but keys, values and the states of `probe_states`.
    """
    name, tokens = type(model).__name__, torch.tensor([[2, 3]])
    try:
        output, states = probe_states(model, tokens)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{name} cannot continue two tokens: {first_line(error)}") from error
    cache = cache_of(output)
    seen, whole = seen_by_attention(model, tokens)
    layers, dummy = [], getattr(cache, "is_dummy", None) or [False] * len(getattr(cache, "layers", ()))
    for index, layer in enumerate(getattr(cache, "layers", ())):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        known = {id(part) for part in state_tensors(layer)}
        parts = [part for part in tree_leaves(vars(layer)) if isinstance(part, Tensor) and part.ndim > 1]
        parts = [part for part in parts if id(part) not in known]
        if not parts and (index in states or dummy[index]):
            layers.append(CacheLayer(0, 0, states.get(index, ())))
            continue
        odd = any(part.ndim != 4 or part.shape[2] != 2 for part in parts)
        if keys is None or values is None or len(parts) != 2 or odd:
            raise UnsupportedModelError(
                f"{name}: layer {index} keeps a state that is no key-value cache ({type(layer).__name__})"
            )
        keys, values = seen.get(index, (keys, values))
        layers.append(CacheLayer(int(keys.shape[1]), int(max(keys.shape[3], values.shape[3])), states.get(index, ())))
    attending = sum(layer.num_kv_heads > 0 for layer in layers)
    if not any(layer.num_kv_heads or layer.states for layer in layers):
        raise UnsupportedModelError(f"{name} returns no key-value cache, so there is nothing to make static")
    if whole and not seen and attending:  # of some layers the trace tells, after much more work
        raise UnsupportedModelError(f"{name} cannot be exported: {custom_attention_reason(attending, attending)}")
    if "position_ids" in inspect.signature(model.forward).parameters:
        _refuse_other_positions(model, tokens, output.logits)
    return tuple(layers)


def _refuse_other_positions(model: PreTrainedModel, tokens: Tensor, logits: Tensor) -> None:
    """Raises `UnsupportedModelError` where positions 0, 1, ... are not what the model takes by itself."""
    try:
        with torch.no_grad():
            numbered = model(input_ids=tokens, position_ids=torch.arange(tokens.shape[1])[None]).logits
    except Exception:  # the trace gives it the same, and tells what is wrong
        return
    if not torch.allclose(numbered.float(), logits.float(), rtol=1e-2, atol=1e-2):
        raise UnsupportedModelError(
            f"{type(model).__name__} numbers its positions by its tokens (from padding_idx + 1), expected 0, 1, ...; "
            "no graph follows that after a cache"
        )


def trace(
    model: PreTrainedModel,
    layers: tuple[CacheLayer, ...],
    dialect: Dialect,
    contract: Contract,
    taps: tuple[int, ...] = (),
    undo: Undo | None = None,
) -> ir.Model:
    """The model's graph in `dialect`, its weights shared with `model`. Raises `UnsupportedModelError` with the reason.

    Where the contract has tree rows, the graph has the inputs that make a tree of a pass.
    taps: which hidden states of all rows are an output too, as `undo` makes them; a `HiddenDraft` has an input for
    them.
    """
    if contract.tree_rows:
        takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        refuse_trees(type(model).__name__, any(layer.states for layer in layers), takes_positions)
    attending = [index for index, layer in enumerate(layers) if layer.num_kv_heads]
    states = {f"{index}.{state.name}": state for index, layer in enumerate(layers) for state in layer.states}
    if states and dialect not in EMITTERS:
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps recurrent or convolution states, which TensorRT before 10.15 cannot run; "
            "build it for a newer TensorRT, or with --engine onnxruntime"
        )
    names = [f"{index}.{half}" for index in attending for half in ("key", "value")]
    inputs = {"tokens": torch.zeros(1, 3, dtype=torch.int64), "position": torch.zeros(1, dtype=torch.int64)}
    dynamic = {"tokens": {1: Dim("width", min=1, max=contract.capacity)}}
    if dialect not in ORT_DIALECTS:
        inputs["columns"] = torch.arange(contract.capacity // 2)
        dynamic["columns"] = {0: Dim("span", min=1, max=contract.capacity)}
    if contract.tree_rows:
        inputs |= {DEPTH: torch.arange(3), ANCESTOR: torch.ones(3, 3).tril().bool()}
        width = dynamic["tokens"][1]
        dynamic |= {DEPTH: {0: width}, ANCESTOR: {0: width, 1: width}}
    if states:
        inputs |= {name: torch.zeros(1, dtype=torch.int64) for name in COUNTS}
    for name, layer in zip(names, (layers[index] for index in attending for _ in "kv"), strict=True):
        shape = (1, layer.num_kv_heads, contract.capacity, layer.head_dim)
        inputs[f"past.{name}"] = torch.zeros(shape, dtype=TORCH_DTYPES[contract.caches])
    for name, state in states.items():
        inputs[f"past.{name}"] = torch.zeros(state.shape(contract), dtype=TORCH_DTYPES[state.precision(contract)])
    written = "new" if dialect == "rows" else "present"
    reads = isinstance(model, HiddenDraft)
    if reads:
        inputs[HIDDEN] = torch.zeros(1, 3, model.row_width, dtype=torch.float32)
        dynamic[HIDDEN] = {1: dynamic["tokens"][1]}
    by_row = ("logits", *((FEEDBACK,) if reads else ()))
    ends = () if reads and model.caches else (*names, *states)  # the caches of another model are not given back
    outputs = [*by_row, *((HIDDEN,) if taps else ()), *(f"{written}.{name}" for name in ends)]
    forward = partial(_static_pass, model, layers, dialect, contract, taps, undo or Undo())
    try:
        graph = export_graph(model, forward, inputs, outputs, dynamic, dialect)
    except Exception as error:
        raise _reason(model, error) from error
    for output in graph.graph.outputs[: len(by_row)]:
        # Traced as T rows; a chunk gives one (kept_rows.py). The engine compares the name with the manifest.
        output.shape = ir.Shape([1, contract.rows_name, *output.shape[2:]])  # type: ignore[index]
    return graph


def trace_fuse(model: HiddenDraft, dialect: Dialect) -> ir.Model:
    """The graph that makes `fused [1, T, H]` of the target's hidden states `hidden [1, T, F]`, both fp32."""
    width = len(model.taps) * model.tap_width
    inputs, dynamic = {HIDDEN: torch.zeros(1, 3, width)}, {HIDDEN: {1: Dim("width", min=1)}}

    def fuse(given: Mapping[str, Tensor]) -> tuple[Tensor]:
        return (model.fuse(given[HIDDEN].to(model.dtype)).float(),)

    return export_graph(model, fuse, inputs, [FUSED], dynamic, dialect)


def _static_pass(
    model: PreTrainedModel,
    layers: tuple[CacheLayer, ...],
    dialect: Dialect,
    contract: Contract,
    taps: tuple[int, ...],
    undo: Undo,
    given: Mapping[str, Tensor],
) -> tuple[Tensor, ...]:
    """A pass over a static cache, from the graph's inputs by name to `(logits, feedback of a draft that reads the
    target, hidden if there are taps, *written, *states)`.
    """
    tokens, position, reads = given["tokens"], given["position"], isinstance(model, HiddenDraft)
    past = {
        index: (given[f"past.{index}.key"], given[f"past.{index}.value"])
        for index, layer in enumerate(layers)
        if layer.num_kv_heads
    }
    tree = Tree(given[DEPTH], given[ANCESTOR]) if contract.tree_rows else None
    states = OpenStates.of(layers, contract, given) if any(layer.states for layer in layers) else None
    there = past if isinstance(model, HiddenDraft) and model.caches else {}  # of another model: read, and not written
    cache = StaticCache(
        position, past, given.get("columns"), tree, states=states, written=dict(there), brought=dict(there)
    )
    accepted = inspect.signature(model.forward).parameters
    rows = KeptRows(tokens, contract.widest_step, OPSETS[dialect])
    # Attention of other dialects numbers its rows by the tokens; trees, taps and drafts that read taps need all.
    early = dialect == "kernels" and not (layers[-1].num_kv_heads or states or tree or taps or reads)
    modules = decoder_layers(model) if early else None
    some = "logits_to_keep" in accepted and modules is None
    options: dict[str, Any] = {cache_argument(model): cache}
    options |= {"logits_to_keep": rows.of if reads else rows.numbers} if some else {}
    options |= {HIDDEN: given[HIDDEN]} if reads else {}
    if "position_ids" in accepted:
        depth = torch.arange(tokens.shape[1]) if tree is None else tree.depth
        options["position_ids"] = (position + depth)[None]
    watching: AbstractContextManager[dict[int, Tensor]] = taps_seen(model, taps) if taps else nullcontext({})
    attention = static_cache_attention(model, cache, dialect)
    keeping = kept_after_last_cache(modules, cache, rows) if modules is not None else nullcontext()
    with attention, static_states(model, cache, dialect), complex_as_pairs(), watching as seen, keeping:
        output = model(input_ids=tokens, use_cache=True, **options)
    if len(cache.written) != len(past):
        raise UnsupportedModelError(custom_attention_reason(len(past) - len(cache.written), len(past)))
    logits = output.logits.float()
    by_row = [logits if some or modules is not None else logits[:, rows.numbers]]
    if reads:
        by_row.append(output.feedback.float())
    if taps:
        by_row.append(torch.cat([undo(tap, seen[tap]) for tap in taps], -1))
    written = (half for _, pair in sorted(cache.written.items()) for half in pair if not there)
    return *by_row, *written, *(states.in_order(layers) if states is not None else ())


def _reason(model: PreTrainedModel, error: BaseException) -> UnsupportedModelError:
    """The refusal that caused an exporter's error: ours, if one was raised on the way, else its first line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnsupportedModelError):
            return UnsupportedModelError(f"{type(model).__name__} cannot be exported: {cause}")
        innermost, cause = cause, cause.__cause__ or cause.__context__
    why = first_line(innermost)
    if isinstance(innermost, GuardOnDataDependentSymNode):
        why = "its code decides by a number that only a running graph knows, such as the tokens in the cache"
    return UnsupportedModelError(f"{type(model).__name__} cannot be traced by torch.export: {why}")
