"""What the verification rules are made of, as ONNX: argmax, processed distributions, draws. float32 throughout.

A `RuleGraph` is written down operator by operator: `op.Where(op.Equal(x, top), ids, size)`. A nucleus is searched for:
TensorRT's TopK ends at 3840 of a vocabulary. No branches and no loops, so that a CUDA graph can hold it all, and so no
CumSum, of which TensorRT before 10.8 makes a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import serde

from ...runtime.sampling.parameters import COMPILED_TOP_K

# The lowest with what the rules need, axes of reductions as inputs: runtimes of many ages read it.
OPSET = 18
IR_VERSION = 8

# A number is a constant: a float is float32, an int or a list of ints is int64, a list of floats is float32.
Operand = ir.Value | float | int | Sequence[int] | Sequence[float]


class RuleGraph:
    """Inputs, then operators called by their ONNX names, then `model()`. Only float32, int64 and bool occur.

    fused: whether the library that runs it fuses small operators, as TensorRT does, or launches a kernel for each.
    """

    def __init__(self, name: str, fused: bool = True) -> None:
        self._name, self.fused = name, fused
        self._tape = ir.tape.Tape()
        self._inputs: list[ir.Value] = []
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}

    def floats(self, name: str, *shape: int) -> ir.Value:
        """The input `name`, float32."""
        return self._input(name, ir.DataType.FLOAT, shape)

    def integers(self, name: str, *shape: int) -> ir.Value:
        """The input `name`, int64."""
        return self._input(name, ir.DataType.INT64, shape)

    def __getattr__(self, operator: str) -> Callable[..., ir.Value]:
        if not operator[0].isupper():  # Python itself asks for names, when it copies or inspects
            raise AttributeError(operator)

        def node(*operands: Operand, **attributes: int) -> ir.Value:
            return self._tape.op(operator, [self._value(operand) for operand in operands], attributes)

        return node

    def largest(self, values: ir.Value, count: int) -> ir.Value:
        """`[rows, n] -> [rows, count]`, descending."""
        return self._tape.op_multi_out("TopK", [values, self._value([count])], num_outputs=2)[0]

    def model(self, outputs: Mapping[str, tuple[ir.Value, ir.DataType, Sequence[int]]]) -> onnx.ModelProto:
        """The finished model. outputs: name -> value, type, shape."""
        values = []
        for name, (value, dtype, shape) in outputs.items():
            value.name, value.dtype, value.shape = name, dtype, ir.Shape(shape)
            values.append(value)
        tape = self._tape
        graph = ir.Graph(
            self._inputs,
            values,
            nodes=tape.nodes,
            initializers=tape.initializers,
            opset_imports={"": OPSET},
            name=self._name,
        )
        return serde.serialize_model(ir.Model(graph, ir_version=IR_VERSION, producer_name="specexport"))

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.val(name, dtype=dtype, shape=ir.Shape(shape))
        self._inputs.append(value)
        return value

    def _value(self, operand: Operand) -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        array = np.asarray(operand)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = self._tape.initializer(ir.tensor(array, name=f"constant_{len(self._constants)}"))
        return self._constants[key]


# A pass of the search tries CUTS values at once, so all of them tell (CUTS + 1) ** PASSES = 2 ** 33 values apart, which
# is finer than float32 scales. On a GPU, a pass is two launches and reads the vocabulary once for each of its values.
CUTS = 7
PASSES = 11

# Of 128256 logits, ONNX Runtime's CUDA provider ranks 8192 in 0.17 ms on an H100, by sorting all of them, and 1024 in
# 0.7 ms. TensorRT ranks 3840 at most.
RANKED_BY_SORTING = 8192

# Tokens of a block of the cumulative sum: sums of few numbers are exact enough in float32.
BLOCK = 512

# Of float32.
LARGEST = 3.4028234663852886e38

# Below any temperature that makes a difference; a denormal one would be flushed to 0, and 0 / 0 is NaN.
LOWEST_TEMPERATURE = 1e-30


def element(op: RuleGraph, vector: ir.Value, index: int) -> ir.Value:
    """`[n] -> [1]`"""
    return rows(op, vector, index, index + 1)


def column(op: RuleGraph, value: ir.Value, index: int) -> ir.Value:
    """`[n, columns] -> [n, 1]`"""
    return op.Slice(value, [index], [index + 1], [1])


def rows(op: RuleGraph, value: ir.Value, start: int, end: int) -> ir.Value:
    """`[n, ...] -> [end - start, ...]`"""
    return op.Slice(value, [start], [end], [0])


def maximum(op: RuleGraph, values: ir.Value, num_rows: int) -> ir.Value:
    """`[rows, n] -> [rows, 1]`, anything for a row with a NaN.

    cuDNN, under ONNX Runtime, has one thread loop over each of several rows. TensorRT fuses a reduction, and no TopK.
    """
    return op.ReduceMax(values, [1], keepdims=1) if num_rows == 1 else op.largest(values, 1)


def argmax(op: RuleGraph, logits: ir.Value, top: ir.Value, num_rows: int, vocab_size: int) -> ir.Value:
    """`[rows, vocab] -> [rows] int64`. top `[rows, 1]`: the largest logits.

    The lowest id wins a tie, on every backend: ArgMax and TopK do not promise that.
    """
    assert vocab_size < 2**24, "float32 has no larger ids"
    places = op.Range(0.0, -float(vocab_size), -1.0)  # negated, for the lowest
    first = op.Neg(maximum(op, op.Where(op.Equal(logits, top), places, -float(vocab_size)), num_rows))
    return op.Squeeze(op.Cast(first, to=int(ir.DataType.INT64)), [1])


def first_unsound(op: RuleGraph, logits: ir.Value, top: ir.Value, num_rows: int) -> ir.Value:
    """`[rows, vocab] -> [1] int64`: the first row with a NaN or +inf, or nothing finite; else the number of rows.

    top `[rows, 1]`: the largest logits.
    """
    # A maximum may pass NaN by, so every logit is compared.
    lost = op.ReduceSum(op.Where(op.LessOrEqual(logits, LARGEST), 0.0, 1.0), [1], keepdims=1)
    sound = op.Squeeze(op.And(op.Equal(lost, 0.0), op.GreaterOrEqual(top, -LARGEST)), [1])
    return op.ReduceMin(op.Where(sound, num_rows, op.Range(0, num_rows, 1)), [0], keepdims=1)


def confidence(op: RuleGraph, logits: ir.Value, top: ir.Value) -> ir.Value:
    """`[rows, vocab] -> [rows]`: the largest probability of the softmax, whatever the request's parameters.

    top `[rows, 1]`: the largest logits.

    It says nothing about the token that was drawn, so stopping a draft by it leaves the output's distribution alone.
    """
    weights = op.Exp(op.Sub(logits, top))
    return op.Div(1.0, op.ReduceSum(weights, [1], keepdims=0))


def processed_probs(
    op: RuleGraph, logits: ir.Value, sampling: ir.Value, num_rows: int, vocab_size: int
) -> tuple[ir.Value, ir.Value]:
    """Truncated and normalised as by `runtime/sampling/truncation.py`, ties together: `[rows, vocab] -> [rows, vocab]`.

    sampling `[4]`: temperature > 0, top_k (0 and from the vocabulary's size on: off; else at most COMPILED_TOP_K),
    top_p (1 is off), min_p (0 is off). Logits of -inf have probability 0. Returned too: the largest logits `[rows, 1]`.
    """
    temperature, top_k, top_p, min_p = (element(op, sampling, index) for index in range(4))
    most = min(COMPILED_TOP_K if op.fused else RANKED_BY_SORTING, vocab_size)
    ranked = op.largest(logits, most)
    top = column(op, ranked, 0)  # [rows, 1]
    scaled = op.Div(op.Sub(logits, top), op.Max(temperature, LOWEST_TEMPERATURE))
    weights = op.Exp(scaled)  # at most 1
    # Logits are compared as they came, since scaling can make two of them equal. Those without weight never matter.
    low = op.Neg(maximum(op, op.Neg(op.Where(op.Greater(weights, 0.0), logits, top)), num_rows))

    place = op.Cast(op.Sub(op.Max(op.Min(top_k, float(most)), 1.0), 1.0), to=int(ir.DataType.INT64))
    by_count = op.Max(op.Gather(ranked, place, axis=1), low)
    cut = op.Where(op.And(op.GreaterOrEqual(top_k, 1.0), op.Less(top_k, float(vocab_size))), by_count, low)
    by_mass = _nucleus(op, logits, weights, cut, top, top_p)
    # A top_p of 1 is off; by the mass, the tail that float32 does not feel would be lost.
    cut = op.Where(op.Less(top_p, 1.0), by_mass, cut)
    kept = op.And(op.GreaterOrEqual(logits, cut), op.GreaterOrEqual(scaled, op.Log(min_p)))
    weights = op.Where(kept, weights, 0.0)
    return op.Div(weights, op.ReduceSum(weights, [1], keepdims=1)), top


def _nucleus(
    op: RuleGraph, logits: ir.Value, weights: ir.Value, low: ir.Value, high: ir.Value, share: ir.Value
) -> ir.Value:
    """`[rows, 1]`: the largest value at which the weight of what lies at or above it is `share` of that from `low` on.

    weights `[rows, vocab]`. low, high `[rows, 1]`: between them it is looked for; high is the largest logit.
    """
    values, counts = op.Unsqueeze(logits, [1]), op.Unsqueeze(weights, [1])  # [rows, 1, vocab]
    goal: ir.Value | None = None
    numbers = [float(number) for number in range(1, CUTS + 1)]
    for _ in range(PASSES):
        step = op.Div(op.Sub(high, low), float(CUTS + 1))
        # One by one where that is fused with the passes before and after, which no reduction would be.
        parts = [op.Add(low, op.Mul(step, number)) for number in (numbers if op.fused else [numbers])]
        tried = op.Concat(*parts, axis=1) if goal is not None else op.Concat(low, *parts, high, axis=1)
        above = op.Where(op.GreaterOrEqual(values, op.Unsqueeze(tried, [2])), counts, 0.0)  # [rows, cuts, vocab]
        sums = op.ReduceSum(above, [2], keepdims=0)
        if goal is None:
            # The search closes in on the largest logit from below; whether it alone is enough is asked of itself.
            goal = op.Mul(share, column(op, sums, 0))
            alone = op.GreaterOrEqual(column(op, sums, CUTS + 1), goal)
            sums, highest = op.Slice(sums, [1], [CUTS + 1], [1]), high
        low, high = _closer(op, parts, sums, goal, low, high)
    return op.Where(alone, highest, low)


def _closer(
    op: RuleGraph, cuts: Sequence[ir.Value], sums: ir.Value, goal: ir.Value, low: ir.Value, high: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The last of the rising cuts whose sum reaches the goal, or low; the first whose does not, or high. `[rows, 1]`.

    cuts: CUTS times `[rows, 1]`, or once all of them. sums `[rows, CUTS]`.
    """
    if len(cuts) == 1:
        reached = op.GreaterOrEqual(sums, goal)
        below, beyond = op.Where(reached, cuts[0], low), op.Where(reached, high, cuts[0])
        return op.ReduceMax(below, [1], keepdims=1), op.ReduceMin(beyond, [1], keepdims=1)
    enough = [op.GreaterOrEqual(column(op, sums, index), goal) for index in range(CUTS)]
    for reached, value in zip(enough, cuts, strict=True):
        low = op.Where(reached, value, low)
    for reached, value in zip(enough[::-1], cuts[::-1], strict=True):
        high = op.Where(reached, high, value)
    return low, high


def draw(op: RuleGraph, masses: Sequence[ir.Value], noise: ir.Value, vocab_size: int) -> ir.Value:
    """A token by the cumulative sum of the first mass that is not empty, never one of mass 0.

    masses: one or two, each `[1, vocab]`, not normalised; noise `[1]` in [0, 1) -> token `[1] int64`.
    First the block, then the token in it. A GPU adds up in an order of its own, so neither sum is relied upon to rise.
    """
    blocks = -(-vocab_size // BLOCK)
    padded = op.Pad(op.Concat(*masses, axis=0), [0, 0, 0, blocks * BLOCK - vocab_size])
    members = op.Reshape(padded, [-1, BLOCK])
    sums = op.Reshape(op.ReduceSum(members, [1], keepdims=0), [-1, blocks])
    cumulative = _cumulative(op, sums, blocks)  # [masses, blocks]
    chosen = op.Where(op.Greater(op.Slice(cumulative, [0, blocks - 1], [1, blocks], [0, 1]), 0.0), 0, len(masses) - 1)
    chosen = op.Reshape(chosen, [1])
    sums, cumulative = (op.Reshape(op.Gather(value, chosen, axis=0), [blocks]) for value in (sums, cumulative))
    goal = op.Mul(noise, element(op, cumulative, blocks - 1))
    block = _first_beyond(op, cumulative, sums, goal, blocks)
    before = op.Gather(op.Concat([0.0], cumulative, axis=0), block)
    members = op.Gather(members, op.Add(op.Mul(chosen, blocks), block), axis=0)  # [1, BLOCK]
    cumulative, members = (op.Reshape(value, [BLOCK]) for value in (_cumulative(op, members, BLOCK), members))
    place = _first_beyond(op, cumulative, members, op.Sub(goal, before), BLOCK)
    return op.Add(op.Mul(block, BLOCK), place)


def _cumulative(op: RuleGraph, values: ir.Value, size: int) -> ir.Value:
    """`[rows, size] -> [rows, size]`: each with all before it, as one sum, so that a GPU makes all sums at once."""
    places = op.Range(0, size, 1)
    before = op.LessOrEqual(op.Unsqueeze(places, [0]), op.Unsqueeze(places, [1]))  # [size, size]
    return op.ReduceSum(op.Where(before, op.Unsqueeze(values, [1]), 0.0), [2], keepdims=0)


def _first_beyond(op: RuleGraph, cumulative: ir.Value, mass: ir.Value, goal: ir.Value, size: int) -> ir.Value:
    """`[size] -> [1] int64`: the first place whose cumulative sum exceeds `goal`, else the last place of mass."""
    places = op.Range(0, size, 1)
    possible = op.Greater(mass, 0.0)
    first = op.ReduceMin(op.Where(op.And(op.Greater(cumulative, goal), possible), places, size), [0], keepdims=1)
    last = op.ReduceMax(op.Where(possible, places, 0), [0], keepdims=1)
    return op.Min(first, last)
