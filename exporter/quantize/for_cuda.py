"""Graphs for ONNX Runtime's CUDA provider: fewer kernels a pass, and larger products.

Each small operator is a kernel of its own, and a pass at batch 1 has hundreds of them. The attention kernel turns
queries and keys itself, and takes them packed from one product of queries, keys and values.

Weights in few bits are `MatMulNBits`, tables `GatherBlockQuantized`. Each block of a weight's inputs has a scale in the
type of the activations, which are not rounded. Blocks of 32 are the ones for which the provider has its kernels for
several tokens.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..passes.clean_up import CLEAN_UP
from ..weights.recipe import Recipe
from .for_onnxruntime import BITS, nbits_product
from .linears import MICROSOFT, Group, groups, linears, name_of, put_in_place
from .pack_qkv import attention_parts, pack_attention
from .picked_weights import quantize_tables
from .rotary import absorb_rotary


def quantize_for_cuda(model: ir.Model, recipe: Recipe, capacity: int) -> int:
    """Returns the number of layers and tables that are in few bits now. capacity: rows of the cache."""
    use_packed_attention(model, capacity, join=False)
    graph = model.graph
    attended = [{*parts} for parts in attention_parts(model)]
    changed = 0
    for form in BITS:
        for group, _ in list(groups(graph, recipe, form)):
            # The outputs of others, were they one product, would be copied apart.
            together = {linear.output for linear in group} in attended
            for part in [group] if together else [[linear] for linear in group]:
                tape = ir.tape.Tape()
                put_in_place(graph, part, tape, nbits_product(graph, tape, part, recipe))
            changed += len(group)
    changed += quantize_tables(model, recipe, by_block=(*BITS,))
    pack_attention(model)
    return changed


def use_packed_attention(model: ir.Model, capacity: int, join: bool = True) -> int:
    """Returns the number of attention layers that take one packed input now. capacity: rows of the cache.

    join: whether queries, keys and values become one product, whose weight is stored beside those that another graph
    reads singly.
    """
    absorb_rotary(model, capacity)
    CLEAN_UP(model)  # what the rotary embedding left would keep queries and keys apart
    by_output = {linear.output: linear for linear in linears(model.graph)}
    for parts in attention_parts(model) if join else ():
        group = [by_output[part] for part in parts if part in by_output]
        if len(group) == len(parts) and _are_one(group):
            tape = ir.tape.Tape()
            put_in_place(model.graph, group, tape, _product(model.graph, tape, group))
    changed = pack_attention(model)
    CLEAN_UP(model)
    return changed


def _are_one(group: Group) -> bool:
    """Whether they are several layers that read the same value, with weights of one kind and no bias of their own."""
    first = group[0]
    if len({linear.node for linear in group}) < len(group):  # keys and values of one weight
        return False
    alike = all(
        linear.input is first.input and linear.transposed and linear.weight.dtype == first.weight.dtype
        for linear in group
    )
    return alike and all(linear.bias is None and len(linear.weight.uses()) == 1 for linear in group)


def _product(graph: ir.Graph, tape: ir.tape.Tape, group: Group) -> ir.Value:
    name = name_of(group)
    shape = ir.Shape([sum(linear.size[0] for linear in group), group[0].size[1]])
    dtype = group[0].weight.dtype
    assert dtype is not None
    tensor = ir.LazyTensor(lambda: _joined(group, name), dtype=dtype, shape=shape, name=name)
    weight = ir.val(name, dtype, shape, const_value=tensor)
    graph.register_initializer(weight)
    return tape.op("FusedMatMul", [group[0].input, weight], {"transB": 1}, domain=MICROSOFT)


def _joined(group: Group, name: str) -> ir.TensorProtocol:
    values = [linear.weight.const_value.numpy() for linear in group]  # type: ignore[union-attr]
    return ir.tensor(np.concatenate(values), dtype=group[0].weight.dtype, name=name)
