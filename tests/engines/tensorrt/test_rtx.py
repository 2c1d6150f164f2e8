"""The compiled rules and the demo pair through TensorRT-RTX: parsed and built on a machine without a GPU.

Nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from specexport.bundle import CacheLayer, Contract, ModelSpec, Precision
from specexport.engines.tensorrt.api import library
from specexport.engines.tensorrt.compile import CompileJob, CompileOptions, Profile, compile_graph, model_profiles
from specexport.engines.tensorrt.network_checks import check_model
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.passes.optimize import optimize, save
from specexport.exporter.rules import graphs as rule_graphs
from specexport.exporter.tracing.trace import probe_cache, trace

trt = pytest.importorskip("tensorrt_rtx")

VOCAB = 32000
MODELS = [
    ("select_greedy", (VOCAB,)),
    ("select", (VOCAB,)),
    ("select", (128256,)),
    ("select", (300,)),  # less than a block of the cumulative sum
    ("accept_greedy", (VOCAB, 1)),
    ("accept_greedy", (VOCAB, 4)),
    ("accept", (VOCAB, 1, "token")),
    ("accept", (VOCAB, 4, "token")),
    ("accept", (VOCAB, 1, "block")),
    ("accept", (VOCAB, 4, "block")),
    ("accept", (128256, 4, "block")),
]


@pytest.fixture(scope="module")
def builder() -> Any:
    return trt.Builder(trt.Logger(trt.Logger.ERROR))


def parsed(builder: Any, model: onnx.ModelProto) -> tuple[Any, Any, list[str]]:
    """The network, the parser, which owns the network's constants, and its errors."""
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    done = parser.parse(model.SerializeToString())
    errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
    assert done == (not errors)
    return network, parser, errors


def ends(values: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name -> type and shape, of ONNX inputs or outputs."""
    names = {onnx.TensorProto.FLOAT: "FLOAT", onnx.TensorProto.INT64: "INT64"}
    return {
        value.name: (
            names[value.type.tensor_type.elem_type],
            tuple(size.dim_value for size in value.type.tensor_type.shape.dim),
        )
        for value in values
    }


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "arguments"), MODELS)
def test_the_rules_parse_and_build(builder: Any, rule: str, arguments: tuple[Any, ...]) -> None:
    model = getattr(rule_graphs, rule)(*arguments)
    network, _parser, errors = parsed(builder, model)
    assert errors == []
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    assert {tensor.name: (tensor.dtype.name, tuple(tensor.shape)) for tensor in inputs} == ends(model.graph.input)
    assert {tensor.name: (tensor.dtype.name, tuple(tensor.shape)) for tensor in outputs} == ends(model.graph.output)
    # A loop would not go into a CUDA graph; an older parser makes one of CumSum.
    kinds = {network.get_layer(index).type for index in range(network.num_layers)}
    assert kinds.isdisjoint({trt.LayerType.TRIP_LIMIT, trt.LayerType.RECURRENCE, trt.LayerType.CONDITION})
    assert builder.build_serialized_network(network, builder.create_builder_config()) is not None


PAIR = Path(__file__).parents[3] / "examples" / "demo_pair"
CONTRACT = Contract(capacity=1024, max_draft_tokens=4, prompt_chunk=64, precision="fp32")
# Kernels of a profile, which take as much in a plan whatever the model's size; a bit more in the dialect `rows`.
KERNELS = 6e6


Graphs = Callable[[str, Precision], tuple[Path, ModelSpec]]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """A model of the demo pair by role and precision: the folder with its graphs, `onnx` and in fp16 `rows` too, and
    its spec.
    """

    @cache
    def graphs(role: str, precision: Precision) -> tuple[Path, ModelSpec]:
        folder = tmp_path_factory.mktemp(f"{role}-{precision}")
        model = find_checkpoint(str(PAIR / role)).load(precision)
        layers: tuple[CacheLayer, ...] = probe_cache(model)
        dialects: tuple[Dialect, ...] = ("onnx", "rows") if precision == "fp16" else ("onnx",)
        traced = {
            dialect: trace(model, layers, dialect, replace(CONTRACT, precision=precision)) for dialect in dialects
        }
        for dialect, graph in traced.items():
            optimize(graph, dialect)
        paths, weights = save(traced, folder, role)
        return folder, ModelSpec(
            role,
            type(model).__name__,
            "",
            model.num_parameters(),
            0,
            layers,
            dict(paths),
            weights,
            0,
            "float",
            (),
            None,
        )

    return graphs


def plan_bytes(
    graphs: Graphs, role: str, contract: Contract, dialect: str, profiles: tuple[Profile, ...] | None = None
) -> tuple[int, int]:
    """Sizes of the plan and of the weights."""
    folder, spec = graphs(role, contract.precision)
    lib = library("tensorrt_rtx")
    check = partial(check_model, trt=trt, spec=spec, contract=contract, dialect=dialect)
    plan = folder / "model.plan"
    job = CompileJob(folder / spec.graphs[dialect], profiles or model_profiles(contract), check)
    compile_graph(lib, job, plan, CompileOptions(), lambda step: None)
    return plan.stat().st_size, (folder / spec.weights).stat().st_size


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("role", "precision", "dialect"),
    [
        ("draft", "fp32", "onnx"),
        ("draft", "fp16", "onnx"),
        ("target", "fp16", "rows"),
        ("draft", "fp16", "rows"),
        ("draft", "bf16", "onnx"),
    ],
)
def test_the_demo_pair_builds(role: str, precision: Precision, dialect: str, graphs: Graphs) -> None:
    contract = replace(CONTRACT, precision=precision)
    plan, weights = plan_bytes(graphs, role, contract, dialect)
    assert weights < plan < weights + KERNELS * len(contract.widths)


@pytest.mark.nightly
def test_the_weights_are_stored_once(graphs: Graphs) -> None:
    """Of the widths 1 and 2; a static width of 1 stores them again in another layout, which is why it is not static."""
    contract = replace(CONTRACT, max_draft_tokens=1, prompt_chunk=2)
    first, *others = model_profiles(contract)
    plan, weights = plan_bytes(graphs, "target", contract, "onnx")
    assert plan < 1.25 * weights
    static, _ = plan_bytes(graphs, "target", contract, "onnx", ({**first, "tokens": ((1, 1),) * 3}, *others))
    assert static > 1.5 * weights
