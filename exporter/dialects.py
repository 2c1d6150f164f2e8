"""The dialects of ONNX that graphs are made in, and which engines run models whose layers keep states.

`onnx`  opset 24 `TensorScatter` writes the new rows in place, `Attention` reads the first C rows of the cache under a
        boolean mask made in the graph (True = attend). For TensorRT from 10.15 on and TensorRT-RTX.
`ort`   `com.microsoft::GroupQueryAttention` does both and costs by the used length. For ONNX Runtime.
`kernels`  as `ort`, with the attention and products of `specexport-kernels` (kernels/README.md), in fp32: a row has the
        same bits in passes of any width. For ONNX Runtime on CPUs.
`rows`  MatMul and Softmax over the first C rows of the cache and over the new rows, which are returned for the caller
        to place. For TensorRT 10.3 to 10.14, which has neither operator of the `onnx` dialect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ..bundle import Precision
from ..engines.catalogue import lacks_states
from ..errors import UnsupportedModelError

Dialect = Literal["kernels", "onnx", "ort", "rows"]
# Those that ONNX Runtime runs.
ORT_DIALECTS: tuple[Dialect, ...] = ("kernels", "ort")
# The oldest that has what the dialect needs; TensorRT 10.3 reads up to 20. `ort` takes its cache and norms from
# com.microsoft: 21 is for int4's blocked DequantizeLinear, and ONNX Runtime 1.23, the last with wheels for Python 3.10,
# reads up to 23.
OPSETS: dict[Dialect, int] = {"kernels": 21, "onnx": 24, "ort": 21, "rows": 18}


def refuse_engines(model: str, engines: Iterable[str], dialects: Iterable[Dialect], precision: Precision) -> None:
    """Raises `UnsupportedModelError` where one of the engines cannot run a model that keeps states.

    model: its architecture, for the message. dialects: of the graphs that the engines ask for. precision: of
    everything but quantized weights.
    """
    keeps = f"{model} keeps recurrent or convolution states"
    if "rows" in dialects:
        raise UnsupportedModelError(
            f"{keeps}, which TensorRT before 10.15 cannot run yet; build it with --engine onnxruntime"
        )
    for engine in engines:
        if why := lacks_states(engine, precision):
            raise UnsupportedModelError(f"{keeps}, {why}")
