"""Networks that TensorRT takes and that give wrong tokens, each parsed by TensorRT-RTX from a graph that is right but
for one thing.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import onnx
import pytest
from specexport.bundle import CacheLayer, Contract, ModelSpec, Reads
from specexport.engines.tensorrt.api import library
from specexport.engines.tensorrt.compile import _allow_decomposition, _builder, _parse
from specexport.engines.tensorrt.network_checks import attention_layers, check_capture, check_model

trt = pytest.importorskip("tensorrt_rtx")

CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=8, precision="fp16")
SPEC = ModelSpec("org/model", "Fake", "0" * 64, 1, 8, (CacheLayer(2, 8),), {}, "", "float", (), None)
CACHE = "float16[1, 2, 64, 8]"
ENDS = f"""<ir_version: 10, opset_import: ["": 24]>
model (float16[1, 2, T, 8] x, int64[1] position, bool[1, 1, T, 64] mask, {CACHE} past.0.key, {CACHE} past.0.value)
=> (float16[1, 2, T, 8] logits, {CACHE} present.0.key, {CACHE} present.0.value)"""
BODY = """{
    present.0.key = TensorScatter <axis = 2> (past.0.key, x, position)
    present.0.value = TensorScatter <axis = 2> (past.0.value, x, position)
    logits = Attention (x, present.0.key, present.0.value, mask)
}"""
ROWS = """<ir_version: 8, opset_import: ["": 18]>
model (float16[1, 2, T, 8] x, float16[1, 2, 64, 8] past.0.key, float16[1, 2, 64, 8] past.0.value)
=> (float16[1, 2, T, 8] logits, float16[1, 2, T, 8] new.0.key, float16[1, 2, T, 8] new.0.value) {
    new.0.key = Neg (x)
    new.0.value = Neg (x)
    turned = Transpose <perm = [0, 1, 3, 2]> (past.0.key)
    scores = MatMul (x, turned)
    logits = MatMul (scores, past.0.value)
}"""


def dotted(name: str) -> str:
    return re.sub(r"^(past|present|new)_(\d)_", r"\1.\2.", name)


class Parsed:
    """A network with what must live as long as it."""

    def __init__(self, text: str, folder: Path) -> None:
        # The parser of the text has no names with dots.
        model = onnx.parser.parse_model(re.sub(r"\b(past|present|new)\.(\d)\.", r"\1_\2_", text))
        for names in (node_names for node in model.graph.node for node_names in (node.input, node.output)):
            names[:] = [dotted(name) for name in names]
        for value in (*model.graph.input, *model.graph.output):
            value.name = dotted(value.name)
        onnx.save(model, folder / "graph.onnx")
        lib = library("tensorrt_rtx")
        self.builder = _builder(lib)
        self.network, self.parser = _parse(lib, self.builder, folder / "graph.onnx")

    def problems(self, dialect: str = "onnx", contract: Contract = CONTRACT, spec: ModelSpec = SPEC) -> list[str]:
        return list(check_model(self.network, trt, spec, contract, dialect))


def problems(
    text: str, folder: Path, dialect: str = "onnx", contract: Contract = CONTRACT, spec: ModelSpec = SPEC
) -> list[str]:
    parsed = Parsed(text, folder)
    _allow_decomposition(parsed.network, trt)
    return parsed.problems(dialect, contract, spec)


def test_an_input_that_decides_shapes(tmp_path: Path) -> None:
    """TensorRT reads its value on the host, where a round has none; a constant does no harm."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    rule (float[8] x, int64[1] count) => (float[n] y) { y = Expand (x, SHAPE) }"""
    (found,) = check_capture(Parsed(text.replace("SHAPE", "count").replace("float[8]", "float[1]"), tmp_path).network)
    assert "count" in found
    constant = text.replace("{", "{ eight = Constant <value = int64[1] {8}> ()").replace("SHAPE", "eight")
    assert list(check_capture(Parsed(constant, tmp_path).network)) == []


def test_the_graph_that_is_right(tmp_path: Path) -> None:
    assert problems(ENDS + BODY, tmp_path) == []
    assert problems(ROWS, tmp_path, "rows") == []


PLAIN = BODY.replace(
    "logits = Attention (x, present.0.key, present.0.value, mask)",
    """turned = Transpose <perm = [0, 1, 3, 2]> (present.0.key)
    products = MatMul (x, turned)
    hidden = Constant <value = float16 {-60000}> ()
    scores = Where (mask, products, hidden)
    weights = Softmax <axis = -1> (scores)
    logits = MatMul (weights, present.0.value)""",
)


def test_attention_by_plain_operators(tmp_path: Path) -> None:
    assert problems(ENDS + PLAIN, tmp_path) == []
    twice = dataclasses.replace(SPEC, layers=SPEC.layers * 2)
    assert "found 1 attention layers, expected 2 or more" in problems(ENDS + PLAIN, tmp_path, spec=twice)


SWAPPED = BODY.replace("past.0.key", "past").replace("past.0.value", "past.0.key").replace("(past,", "(past.0.value,")
# One end of the network another, by name.
RENAMED = ENDS.replace("present.0.key", "present.1.key") + BODY.replace("present.0.key", "present.1.key")
UNALIASED = BODY.replace(
    "present.0.key = TensorScatter <axis = 2> (past.0.key, x, position)", "present.0.key = Neg (past.0.key)"
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ENDS + BODY.replace(", mask)", ")"), "has no mask"),
        (
            ENDS + BODY.replace("Attention (", "Attention <is_causal = 1> (").replace(", mask)", ")"),
            "applies a causal mask of its own",
        ),
        # What the parser drops in silence.
        (
            (ENDS + BODY)
            .replace("bool[1, 1, T, 64] mask", "int64[1] mask")
            .replace("present.0.value, mask", "present.0.value, , , , mask"),
            "has no mask",
        ),
        (ENDS + SWAPPED, "present.0.key is not past.0.key updated in place"),
        (ENDS + UNALIASED, "present.0.key is not past.0.key updated in place"),
        (RENAMED, "present.0.key is no output of the network"),
        (
            ENDS + BODY.replace("Attention (x, present.0.key, present.0.value, mask)", "Neg (x)"),
            "found 0 attention layers, expected 1 or more",
        ),
    ],
)
def test_traps(text: str, problem: str, tmp_path: Path) -> None:
    found = problems(text, tmp_path)
    assert any(problem in line for line in found), found


def test_attention_that_may_not_be_decomposed(tmp_path: Path) -> None:
    parsed = Parsed(ENDS + BODY, tmp_path)
    (problem,) = parsed.problems()
    assert "may not be made of other kernels" in problem
    _allow_decomposition(parsed.network, trt)
    assert parsed.problems() == []
    (layer,) = attention_layers(parsed.network, trt)
    assert layer.attention.decomposable


LOOP = """<ir_version: 8, opset_import: ["": 18]>
rule (float[8] x, int64 count) => (float[8] y) {
    go = Constant <value = bool {1}> ()
    y = Loop (count, go, x) <body = step (int64 i, bool before, float[8] a) => (bool after, float[8] b) {
        after = Identity (before)
        b = Add (a, a)
    }>
}"""
BRANCH = """<ir_version: 8, opset_import: ["": 18]>
rule (float[8] x, bool go) => (float[8] y) {
    y = If (go) <then_branch = one () => (float[8] a) { a = Add (x, x) },
        else_branch = other () => (float[8] b) { b = Neg (x) }>
}"""


@pytest.mark.parametrize(("text", "kind"), [(LOOP, "TRIP_LIMIT"), (BRANCH, "CONDITION")])
def test_graphs_that_no_cuda_graph_can_hold(text: str, kind: str, tmp_path: Path) -> None:
    network = Parsed(text, tmp_path).network
    for found in (list(check_capture(network)), list(check_model(network, trt, SPEC, CONTRACT, "onnx"))):
        assert any(f"is a {kind} layer, which a CUDA graph cannot hold" in line for line in found), found


SHOWS = ENDS.replace("=> (", "=> (float[1, T, 6] hidden, ")
READS = ENDS.replace("model (", "model (float[1, T, 6] hidden, ").replace("=> (", "=> (float[1, T, 6] feedback, ")


def test_hidden_states(tmp_path: Path) -> None:
    """Of the width that the manifest says, in fp32."""
    target = dataclasses.replace(SPEC, taps=(1, 2, 3), tap_width=2)
    draft = dataclasses.replace(SPEC, reads=Reads("eagle3", (1, 2, 3), 6, {}))
    shows = BODY.replace(
        "}",
        """    first = Constant <value = int64[1] {0}> ()
    last = Constant <value = int64[1] {6}> ()
    axis = Constant <value = int64[1] {3}> ()
    heads = Constant <value = int64[1] {1}> ()
    some = Slice (x, first, last, axis)
    sum = ReduceSum <keepdims = 0> (some, heads)
    OUTPUT = Cast <to = 1> (sum)
}""",
    )
    assert problems(SHOWS + shows.replace("OUTPUT", "hidden"), tmp_path, spec=target) == []
    wide = dataclasses.replace(target, tap_width=3)
    (wrong,) = problems(SHOWS + shows.replace("OUTPUT", "hidden"), tmp_path, spec=wide)
    assert "hidden is FLOAT [1, -1, 6], expected FLOAT [1, -1, 9]" in wrong
    assert problems(ENDS + BODY, tmp_path, spec=target) == ["hidden is no output of the network"]
    reads = shows.replace("OUTPUT", "other").replace("\n}", "\n    feedback = Add (other, hidden)\n}")
    assert problems(READS + reads, tmp_path, spec=draft) == []
    assert problems(ENDS + BODY, tmp_path, spec=draft) == [
        "hidden is no input of the network",
        "feedback is no output of the network",
    ]
