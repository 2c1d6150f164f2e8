"""Which hosts saturate, by their /proc/cpuinfo; and that the slower products are exact, which any host can run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from specexport.engines.onnxruntime import session_options as products
from specexport.engines.onnxruntime.graphs import open_session
from specexport.engines.onnxruntime.session_options import saturates

# The flags that matter, as Linux prints them for an EPYC 7763 (Zen 3), an EPYC 9354 (Zen 4), a Xeon 8175M (Skylake),
# a Xeon 8375C (Ice Lake) and a Core i5-1240P (Alder Lake).
ZEN3 = "flags\t\t: fpu sse4_1 sse4_2 fma avx avx2 bmi2 vaes vpclmulqdq"
ZEN4 = f"{ZEN3} avx512f avx512dq avx512bw avx512vl avx512_vnni avx512_bf16"
SKYLAKE = "flags\t\t: fpu sse4_1 sse4_2 fma avx avx2 bmi2 avx512f avx512dq avx512cd avx512bw avx512vl"
ICE_LAKE = f"{SKYLAKE} avx512_vnni avx512_bitalg"
ALDER_LAKE = f"{ZEN3} avx_vnni"
ARM = "Features\t: fp asimd evtstrm aes asimdhp cpuid asimdrdm asimddp"


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "expected"),
    [
        (ZEN3, "x86_64", True),
        (ZEN4, "x86_64", False),
        (SKYLAKE, "x86_64", True),
        (ICE_LAKE, "x86_64", False),
        (ALDER_LAKE, "x86_64", False),
        (f"{ALDER_LAKE}\n\n{ZEN3}", "x86_64", True),
        (f"{SKYLAKE} avx_vnni", "x86_64", True),
        ("", "AMD64", True),
        (ARM, "aarch64", False),
        ("", "arm64", False),
    ],
    ids=["zen3", "zen4", "skylake", "ice-lake", "alder-lake", "mixed", "avx512-first", "windows", "arm", "apple"],
)
def test_hosts(cpuinfo: str, machine: str, expected: bool) -> None:
    assert saturates(cpuinfo, machine) == expected


def test_it_is_this_host_that_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    assert saturates()
    products.CPUINFO.write_text(ZEN4)
    assert not saturates()


@pytest.mark.parametrize("limit", [64, 127])
def test_weights_beyond_the_limit_are_stored_unsigned_and_exact(
    limit: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `exporter/quantize/for_onnxruntime.py` writes products, of a weight and of a transposed table."""
    monkeypatch.setattr(products, "saturates", lambda: True)
    numbers = np.random.default_rng(0)
    weight = np.where(numbers.random((256, 48)) < 0.5, limit, -limit).astype(np.int8)
    values = [
        ir.val(name, tensor.dtype, ir.Shape(tensor.shape), const_value=tensor)
        for name, tensor in (
            ("weight", ir.tensor(weight, name="weight")),
            ("table", ir.tensor(np.ascontiguousarray(weight.T), name="table")),
            ("zero", ir.tensor(np.array(128, np.uint8), name="zero")),
        )
    ]
    rows = ir.val("rows", ir.DataType.UINT8, ir.Shape(["T", 256]))
    turned = ir.node("Transpose", [values[1]], {"perm": [1, 0]})
    products_of = [ir.node("MatMulInteger", [rows, right, values[2]]) for right in (values[0], turned.outputs[0])]
    outputs = [node.outputs[0] for node in products_of]
    for index, output in enumerate(outputs):
        output.name, output.type = f"product{index}", ir.TensorType(ir.DataType.INT32)
    nodes = [turned, *products_of]
    graph = ir.Graph([rows], outputs, nodes=nodes, initializers=values, opset_imports={"": 20}, name="products")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    products.keep_exact(options)
    model = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = np.where(numbers.random((5, 256)) < 0.5, 255, 1).astype(np.uint8)
    exact = (given.astype(np.int64) - 128) @ weight.astype(np.int64)
    assert all(np.array_equal(found, exact) for found in session.run(None, {"rows": given}))
    stored = {tensor.data_type for tensor in onnx.load(tmp_path / "optimized.onnx").graph.initializer if tensor.dims}
    assert (onnx.TensorProto.INT8 in stored) == (limit == 64)


def test_activations_before_restored_weights_are_not_rounded(tmp_path: Path) -> None:
    """ONNX Runtime fuses these nodes into a product that rounds them to int8."""
    numbers, (inputs, outputs, block) = np.random.default_rng(0), (64, 48, 32)
    weight, scale = numbers.integers(-8, 8, (inputs, outputs)), numbers.random((inputs // block, outputs))
    stored = onnx.helper.make_tensor("weight", onnx.TensorProto.INT4, weight.shape, weight.reshape(-1).tolist())
    scales = onnx.numpy_helper.from_array(scale.astype(np.float32), "scale")
    restore = onnx.helper.make_node("DequantizeLinear", ["weight", "scale"], ["restored"], axis=0, block_size=block)
    multiply = onnx.helper.make_node("MatMul", ["rows", "restored"], ["product"])
    rows, product = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size])
        for name, size in (("rows", inputs), ("product", outputs))
    )
    graph = onnx.helper.make_graph([restore, multiply], "products", [rows], [product], [stored, scales])
    opset = onnx.helper.make_opsetid("", 21)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "model.onnx")
    given = numbers.standard_normal((1, inputs)).astype(np.float32)
    exact = weight * scale.astype(np.float32).repeat(block, axis=0).astype(np.float64)
    found = open_session(tmp_path / "model.onnx", 1).run(None, {"rows": given})[0]
    assert (np.abs(found - given @ exact) <= inputs * 2**-23 * (np.abs(given) @ np.abs(exact))).all()
