from __future__ import annotations

import numpy as np
import onnx
from onnx_ir import serde
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.accumulate import accumulate_in_fp32

MODEL = """<ir_version: 10, opset_import: ["": 21]>
model (float16[T, 4096] x, float16[4096, 2] w, float16[2] b, float[T, 4096] wide, float[4096, 2] v,
       int8[2, 4096] stored, float16 scale)
=> (float16[T, 2] plain, float16[T, 2] biased, float[T, 2] single, float16[T, 2] quantized) {
    [first] plain = MatMul (x, w)
    [second] biased = Gemm <alpha = 2.0> (x, w, b)
    [third] single = MatMul (wide, v)
    restored = DequantizeLinear (stored, scale)
    turned = Transpose <perm = [1, 0]> (restored)
    [fourth] quantized = MatMul (x, turned)
}"""


def test_products_in_fp16_add_up_in_fp32_and_no_others() -> None:
    model = serde.deserialize_model(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(MODEL)))
    assert accumulate_in_fp32(model) == 2
    made = serde.serialize_model(model)
    onnx.checker.check_model(made, full_check=True)
    casts = {node.output[0] for node in made.graph.node if node.op_type == "Cast"}
    products = {node.name: node for node in made.graph.node if node.op_type in ("MatMul", "Gemm")}
    assert [name for name, node in products.items() if casts.issuperset(node.input)] == ["first", "second"]
    x = np.full((1, 4096), 1.0, np.float16)
    w, b = np.full((4096, 2), 1 + 2**-10, np.float16), np.array([0, 8], np.float16)
    feed = dict(x=x, w=w, b=b, wide=x.astype(np.float32), v=w.astype(np.float32))
    feed |= dict(stored=np.ones((2, 4096), np.int8), scale=np.array(1, np.float16))
    found = open_session(made.SerializeToString(), 0).run(["plain", "biased"], feed)
    # In fp16, a sum from 2048 on would move in steps of 2, and not by 1 + 2**-10.
    assert [values.tolist() for values in found] == [[[4100.0, 4100.0]], [[8200.0, 8208.0]]]
    assert [values.dtype for values in found] == [np.float16] * 2
    assert accumulate_in_fp32(model) == 0
