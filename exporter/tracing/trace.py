"""Trace a causal language model into an ONNX graph that keeps the contract of `bundle/contract.py`."""

from __future__ import annotations

import inspect
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.onnx.ops import symbolic
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
from .onnx_export import export_graph
from .probe import cache_argument, cache_of, custom_attention_reason, probe_states, seen_by_attention, state_tensors
from .recurrences import OpenStates
from .states import EMITTERS, StateCache, static_states
from .taps import Undo, taps_seen
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
    seen = seen_by_attention(model, tokens)
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
        keys, values = seen.layers.get(index, (keys, values))
        layers.append(CacheLayer(int(keys.shape[1]), int(max(keys.shape[3], values.shape[3])), states.get(index, ())))
    attending = sum(layer.num_kv_heads > 0 for layer in layers)
    if not any(layer.num_kv_heads or layer.states for layer in layers):
        raise UnsupportedModelError(f"{name} returns no key-value cache, so there is nothing to make static")
    if seen.whole and not seen.layers and attending:  # of some layers the trace tells, after much more work
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
    decoder = StaticDecoder(model, layers, dialect, contract, taps, undo)
    try:
        graph = export_graph(decoder, inputs, outputs, dynamic, dialect)
    except Exception as error:
        raise _reason(model, error) from error
    for output in graph.graph.outputs[: len(by_row)]:
        # Traced as T rows; a prefill chunk gives one (see kept_rows). The engine compares the name with the manifest.
        output.shape = ir.Shape([1, contract.rows_name, *output.shape[2:]])  # type: ignore[index]
    return graph


def trace_fuse(model: HiddenDraft, dialect: Dialect) -> ir.Model:
    """The graph that makes `fused [1, T, H]` of the target's hidden states `hidden [1, T, F]`, both fp32."""
    width = len(model.taps) * model.tap_width
    inputs, dynamic = {HIDDEN: torch.zeros(1, 3, width)}, {HIDDEN: {1: Dim("width", min=1)}}
    return export_graph(Fuse(model), inputs, [FUSED], dynamic, dialect)


class Fuse(torch.nn.Module):
    def __init__(self, model: HiddenDraft) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: Tensor) -> Tensor:
        return self.model.fuse(hidden.to(self.model.dtype)).float()


class StaticDecoder(torch.nn.Module):
    """Any `AutoModelForCausalLM` over a static cache.

    `(tokens, position, columns unless for ONNX Runtime, depth and ancestor if trees, pending and certain if any, *past,
    *states, hidden if it is a draft that reads the target's)
    -> (logits, feedback of such a draft, hidden if there are taps, *written, *states)`
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: tuple[CacheLayer, ...],
        dialect: Dialect,
        contract: Contract,
        taps: tuple[int, ...] = (),
        undo: Undo | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.layers = layers
        self.dialect = dialect
        self.contract = contract
        self.widest_step = contract.widest_step
        self.taps = taps
        self.undo = undo or Undo()
        self.reads = isinstance(model, HiddenDraft)
        self.writes = not (isinstance(model, HiddenDraft) and model.caches)
        self.takes_trees = contract.tree_rows > 0
        self.accepted = inspect.signature(model.forward).parameters

    def forward(self, tokens: Tensor, position: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        columns, rest = (None, rest) if self.dialect in ORT_DIALECTS else (rest[0], rest[1:])
        tree, rest = (Tree(*rest[:2]), rest[2:]) if self.takes_trees else (None, rest)
        hidden, rest = (rest[-1], rest[:-1]) if self.reads else (None, rest)
        cache = self._cache(position, columns, rest)
        cache.tree = tree
        by_row: tuple[Tensor, ...]
        if hidden is not None:
            by_row = self._with_feedback(tokens, position, cache, hidden)
        elif self.taps:
            with taps_seen(self.model, self.taps) as seen:
                by_row = self._logits(tokens, position, cache)
            by_row = (*by_row, torch.cat([self.undo(tap, seen[tap]) for tap in self.taps], -1))
        else:
            by_row = self._logits(tokens, position, cache)
        if len(cache.written) != len(cache.past):
            raise UnsupportedModelError(custom_attention_reason(len(cache.past) - len(cache.written), len(cache.past)))
        if not self.writes:
            return by_row
        states = cache.states.in_order(self.layers) if cache.states is not None else []
        return *by_row, *(half for _, pair in sorted(cache.written.items()) for half in pair), *states

    def _cache(self, position: Tensor, columns: Tensor | None, rest: tuple[Tensor, ...]) -> StateCache:
        attending = [index for index, layer in enumerate(self.layers) if layer.num_kv_heads]
        has_states = any(layer.states for layer in self.layers)
        counts, rest = (rest[:2], rest[2:]) if has_states else (rest[:0], rest)
        past, rest = rest[: 2 * len(attending)], rest[2 * len(attending) :]
        pairs = dict(zip(attending, zip(past[::2], past[1::2], strict=True), strict=True))
        states = OpenStates.of(self.layers, self.contract, counts, rest) if has_states else None
        there = {} if self.writes else pairs
        return StateCache(position, pairs, columns, written=dict(there), brought=dict(there), states=states)

    def _logits(self, tokens: Tensor, position: Tensor, cache: StateCache) -> tuple[Tensor]:
        rows = kept_rows(tokens, self.widest_step, OPSETS[self.dialect])
        some = "logits_to_keep" in self.accepted
        logits = self._run(tokens, position, cache, {"logits_to_keep": rows} if some else {})
        return (logits if some else logits[:, rows],)

    def _with_feedback(
        self, tokens: Tensor, position: Tensor, cache: StateCache, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of a draft that reads hidden states; `feedback` of the rows of the logits."""
        rows = kept_rows(tokens, self.widest_step, OPSETS[self.dialect])
        output = self._pass(tokens, position, cache, {"logits_to_keep": rows, HIDDEN: hidden})
        feedback = only_kept(output.feedback.float(), tokens, self.widest_step, OPSETS[self.dialect])
        return output.logits.float(), feedback

    def _run(self, tokens: Tensor, position: Tensor, cache: StateCache, options: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self._pass(tokens, position, cache, options).logits
        return logits.float()

    def _pass(self, tokens: Tensor, position: Tensor, cache: StateCache, options: dict[str, Tensor]) -> Any:
        if "position_ids" in self.accepted:
            depth = torch.arange(tokens.shape[1]) if cache.tree is None else cache.tree.depth
            options["position_ids"] = (position + depth)[None]
        attention = static_cache_attention(self.model, cache, self.dialect)
        with attention, static_states(self.model, cache, self.dialect), complex_as_pairs():
            keywords: dict[str, Any] = {cache_argument(self.model): cache, **options}
            return self.model(input_ids=tokens, use_cache=True, **keywords)


def kept_rows(tokens: Tensor, widest_step: int, opset: int) -> Tensor:
    """Rows whose logits are wanted, `[rows] int64`: all of a step, only the last of a prefill chunk.

    The true number is 1 for a chunk; tracing cannot say so, and takes it for the number of tokens.
    """
    width = symbolic("Shape", (tokens,), dict(start=1, end=2), dtype=torch.int64, shape=[1], version=opset)[0]
    first = torch.where(width > widest_step, width - 1, torch.zeros_like(width))
    return symbolic(
        "Range", (first, width, torch.ones_like(width)), dtype=torch.int64, shape=[tokens.shape[1]], version=opset
    )


def only_kept(values: Tensor, tokens: Tensor, widest_step: int, opset: int) -> Tensor:
    """The `kept_rows` of `values [1, T, n]` by one Slice, whose start stays on the host.

    The same shape, as far as tracing knows.
    """
    width = symbolic("Shape", (tokens,), dict(start=1, end=2), dtype=torch.int64, shape=[1], version=opset)
    first = torch.where(width > widest_step, torch.full_like(width, -1), torch.zeros_like(width))
    # No steps: given them, the rule that drops slices of the whole would go by the shape.
    last, axis = torch.tensor([torch.iinfo(torch.int64).max]), torch.tensor([1])
    return symbolic("Slice", (values, first, last, axis), dtype=values.dtype, shape=values.shape, version=opset)


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
