"""Faults in the passes that give products, tables and attention to the operators of kernels/."""

from __future__ import annotations

from .mutant import Mutant

LAYOUTS, PRODUCTS, FUSE = (f"exporter/kernels/{name}.py" for name in ("layouts", "products", "fuse"))
LAYOUT_TESTS, PRODUCT_TESTS, FUSE_TESTS = (
    (f"tests/exporter/kernels/test_{name}.py",) for name in ("layouts", "products", "fuse")
)
PACK_TESTS = ("tests/exporter/quantize/test_pack_qkv.py",)
TURNS, TURN_TESTS = "exporter/quantize/rotary.py", ("tests/exporter/quantize/test_rotary.py",)

KERNELS = (
    Mutant(
        "bf16 is taken for what has a bit more",
        LAYOUTS,
        "(weight.view(np.uint32) & 0xFFFF).any()",
        "(weight.view(np.uint32) & 0x7FFF).any()",
        LAYOUT_TESTS,
    ),
    Mutant(
        "fp16 is taken for what is near",
        LAYOUTS,
        "np.array_equal(weight.astype(np.float16).astype(np.float32), weight)",
        "np.allclose(weight.astype(np.float16).astype(np.float32), weight)",
        LAYOUT_TESTS,
    ),
    Mutant(
        "the halves of an int4 block change places",
        LAYOUTS,
        "blocks[:, :, :, 0] | blocks[:, :, :, 1] << 4",
        "blocks[:, :, :, 1] | blocks[:, :, :, 0] << 4",
        LAYOUT_TESTS,
    ),
    Mutant(
        "heads lose what is more than whole vectors",
        LAYOUTS,
        "-(-layer.head_dim // LANES) * LANES",
        "layer.head_dim // LANES * LANES",
        LAYOUT_TESTS,
    ),
    Mutant(
        "a table's product is put together with another",
        PRODUCTS,
        "alone = is_table(linear.weight) or linear.bias is not None",
        "alone = linear.bias is not None",
        PRODUCT_TESTS,
    ),
    Mutant(
        "rows are picked from what is stored by columns",
        PRODUCTS,
        "table.weight not in read_as_stored",
        "True",
        PRODUCT_TESTS,
    ),
    Mutant(
        "a table has other scales than the kernels'",
        PRODUCTS,
        'chosen.block == (BLOCK if chosen.format == "int4" else 0)',
        "True",
        PRODUCT_TESTS,
    ),
    Mutant(
        "a table has the rows that its panels hold",
        PRODUCTS,
        ', "num_outputs": table.size[0]}',
        "}",
        PRODUCT_TESTS,
    ),
    Mutant(
        "a matrix that turns is a product",
        PRODUCTS,
        "if turn_size(linear.weight):",
        "if False:",
        PRODUCT_TESTS,
    ),
    Mutant(
        "a bias of another shape",
        FUSE,
        "list(tensor.shape) != [outputs]",
        "tensor.shape[-1] not in (1, outputs)",
        FUSE_TESTS,
    ),
    Mutant(
        "the second half is the gate",
        FUSE,
        "gate, up = split.outputs",
        "up, gate = split.outputs",
        FUSE_TESTS,
    ),
    Mutant(
        "a gate that others read",
        FUSE,
        "_only_reader(activated) is not product_of or up not in product_of.inputs",
        "up not in product_of.inputs",
        FUSE_TESTS,
    ),
    Mutant(
        "a gate of half a panel",
        FUSE,
        "half % PANEL",
        "False",
        FUSE_TESTS,
    ),
    Mutant(
        "any GELU is the one by tanh",
        FUSE,
        'readers[0].attributes.get_string("approximate", "none") == "tanh"',
        "True",
        FUSE_TESTS,
    ),
    Mutant(
        "a norm that others read",
        FUSE,
        "norm is None or value is None or _only_reader(value) is not product",
        "norm is None or value is None",
        FUSE_TESTS,
    ),
    Mutant(
        "every norm has the same epsilon",
        FUSE,
        'norm.attributes.get_float("epsilon", 1e-5)',
        "1e-5",
        FUSE_TESTS,
    ),
    Mutant(
        "a norm over another axis",
        FUSE,
        'norm.attributes.get_int("axis", -1) != -1 or _rank(gain) != 1',
        "_rank(gain) != 1",
        FUSE_TESTS,
    ),
    Mutant(
        "the sum of a norm is an output of nobody",
        FUSE,
        "total is not None and (total.uses() or total.is_graph_output())",
        "total is not None and total.uses()",
        FUSE_TESTS,
    ),
    Mutant(
        "any square matrix turns",
        FUSE,
        "np.allclose(tensor.numpy(), hadamard(size).numpy(), atol=1e-7)",
        "True",
        FUSE_TESTS,
    ),
    Mutant(
        "turned heads keep their shape",
        FUSE,
        "made_by is not None and made_by.domain == DOMAIN",
        "True",
        FUSE_TESTS,
    ),
    Mutant(
        "turned rows keep their shape",
        FUSE,
        " and _rank(value) in (None, rank)",
        "",
        FUSE_TESTS,
    ),
    Mutant(
        "heads are halved as a gate is",
        "exporter/quantize/linears.py",
        "axis == -1 or (value is not None and value.shape is not None and axis == len(value.shape) - 1)",
        "axis in (-1, 2)",
        FUSE_TESTS,
    ),
    Mutant(
        "what is split along any axis is packed",
        TURNS,
        "not splits_last_axis(split) or not ranks <= {3}",
        "not ranks <= {3}",
        PACK_TESTS,
    ),
    Mutant(
        "what is split in one list is packed",
        TURNS,
        "not splits_last_axis(split) or not ranks <= {3}",
        "not splits_last_axis(split)",
        PACK_TESTS,
    ),
    Mutant(
        "angles may depend on the tokens",
        TURNS,
        'value.name not in feeds or (value.name == "tokens" and readers != {"Shape"})',
        "value.name not in feeds",
        TURN_TESTS,
    ),
    Mutant(
        "neighbours are turned as halves",
        TURNS,
        'node.attributes["neighbours"] = ir.AttrInt64("neighbours", 1)',
        'node.attributes["neighbours"] = ir.AttrInt64("neighbours", 0)',
        TURN_TESTS,
    ),
    Mutant(
        "halves are turned by any angles",
        TURNS,
        "not np.allclose(pairs[..., 0], pairs[..., 1], rtol=0, atol=EQUAL)",
        "False",
        TURN_TESTS,
    ),
    Mutant(
        "the last part of a head is turned",
        TURNS,
        "one == (0, other[0], 1) and other[1:] == (END, 1)",
        "True",
        TURN_TESTS,
    ),
    Mutant(
        "keys are turned as queries are",
        TURNS,
        "query is None or key is None or query.way != key.way",
        "query is None or key is None",
        TURN_TESTS,
    ),
    Mutant(
        "turns have no sign",
        TURNS,
        '_sliced(halves.inputs[1], heads), _sliced(_through(halves.inputs[0], "Neg"), heads)',
        "_sliced(halves.inputs[1], heads), _sliced(halves.inputs[0], heads)",
        TURN_TESTS,
    ),
    Mutant(
        "a norm of heads loses its place",
        TURNS,
        "view = _swapped(made_by.inputs[0])",
        "view = made_by.inputs[0]",
        TURN_TESTS,
    ),
)
