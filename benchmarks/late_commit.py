"""What the late commit of states costs a pass of a hybrid: its target's graph against the same graph without it.

    python benchmarks/late_commit.py BUNDLE [--context 256] [--turns 40] [--threads 0]

The graph without: every recurrence is one operator and every convolution one, from the past state straight to the
present one, and nothing is kept of open rows, so that no draft could be rejected. All else is the same, the weights
too. Both run a pass of each width in turn, behind one of the same width: with the late commit all rows of that become
certain, the most that can. Prints medians, and the median of the ratios with the range of the middle half of them. For
a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import onnxruntime as ort
from hardware import describe_hardware
from numpy.typing import NDArray
from specexport.bundle import Bundle, Contract, ModelSpec
from specexport.engines.onnxruntime.cpu import OrtDecoder
from specexport.engines.onnxruntime.graphs import UNUSED_OPTIMIZERS
from specexport.engines.onnxruntime.pool import configure
from specexport.engines.onnxruntime.products import keep_exact


def without_late_commit(path: Path, spec: ModelSpec) -> onnx.ModelProto:
    """The graph at `path` with states that every row advances at once. Its weights stay where they are."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type == "LinearAttention" and node.input[3].startswith("present."):
            _recur_at_once(node, made, graph)
        elif node.op_type == "CausalConvWithState":
            past = made[made[made[node.input[3]].input[0]].input[0]].input[0]
            del made[past.replace("past.", "present.")].output[:]
            node.input[3], node.output[1] = past, past.replace("past.", "present.")
    _prune(graph)
    ahead = {name: state.ahead for side in ("past", "present") for name, state in spec.state_names(side) if state.ahead}
    for value in (*graph.input, *graph.output):
        if value.name in ahead:
            value.type.tensor_type.shape.dim[1].dim_value = ahead[value.name]
    return model


def _recur_at_once(second: onnx.NodeProto, made: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    """second: the call of two that computes the rows that stay open."""
    name = second.input[3]
    joined = made[made[made[second.input[0]].input[0]].input[0]]  # split, cut, joined with the rows that were open
    parts = made[joined.input[-1]].input
    del made[name].output[:]
    both = next(node for node in graph.node if second.output[0] in node.input)
    new = next(node for node in graph.node if both.output[0] in node.input)
    second.input[:] = [*parts[:3], name.replace("present.", "past."), *parts[3:]]
    second.output[:] = [new.output[0], name]
    del new.output[:]


def _prune(graph: onnx.GraphProto) -> None:
    """Leave what the outputs need, without the rows that were kept open."""
    outputs = [value for value in graph.output if ".rows" not in value.name]
    del graph.output[:]
    graph.output.extend(outputs)
    needed, nodes = {value.name for value in outputs}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    inputs = [value for value in graph.input if value.name in needed]
    for field, kept in ((graph.node, reversed(nodes)), (graph.input, inputs)):
        kept = list(kept)
        del field[:]
        field.extend(kept)


class Plain:
    """A graph of `without_late_commit`, bound in place like an `OrtDecoder`."""

    def __init__(self, path: Path, spec: ModelSpec, contract: Contract, threads: int) -> None:
        model = without_late_commit(path, spec)
        options = ort.SessionOptions()
        configure(options, threads)
        keep_exact(options)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        where = dict(providers=["CPUExecutionProvider"], disabled_optimizers=UNUSED_OPTIMIZERS)
        self._session = ort.InferenceSession(model.SerializeToString(), options, **where)
        self._kept = {
            value.name: np.zeros([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
            for value in model.graph.input
            if value.name.startswith("past.")
        }
        self._position, self._bound = np.zeros(1, np.int64), {}
        self._vocab_size, self._widest = spec.vocab_size, contract.widest_step

    def step(self, tokens: list[int], position: int) -> NDArray[np.float32]:
        if len(tokens) not in self._bound:
            self._bound[len(tokens)] = self._bind(len(tokens))
        io, given, logits = self._bound[len(tokens)]
        given[0], self._position[0] = tokens, position
        self._session.run_with_iobinding(io)
        return logits[0]

    def _bind(self, width: int) -> tuple[ort.IOBinding, NDArray[np.int64], NDArray[np.float32]]:
        io, value = self._session.io_binding(), ort.OrtValue.ortvalue_from_numpy
        tokens = np.zeros((1, width), np.int64)
        logits = np.zeros((1, width if width <= self._widest else 1, self._vocab_size), np.float32)
        io.bind_ortvalue_input("tokens", value(tokens))
        io.bind_ortvalue_input("position", value(self._position))
        io.bind_ortvalue_output("logits", value(logits))
        for name, array in self._kept.items():
            kept = value(array)
            io.bind_ortvalue_input(name, kept)
            io.bind_ortvalue_output(name.replace("past.", "present."), kept)
        return io, tokens, logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--context", type=int, default=256, help="tokens in front of the passes")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    bundle = Bundle.open(arguments.bundle, check_digests=False)
    spec, contract = bundle.manifest.target, bundle.manifest.contract
    if not spec.has_states or contract.precision != "fp32":
        parser.error(f"{arguments.bundle}: this needs a target that keeps states, in fp32")
    widths = sorted({1, contract.widest_step})
    if arguments.context + 2 * arguments.turns * sum(widths) > contract.capacity:
        parser.error(f"the capacity is {contract.capacity}; take fewer --turns or a shorter --context")
    path = bundle.path(spec.graphs["ort"])
    print(describe_hardware())
    compare(
        OrtDecoder(path, spec, contract, arguments.threads),
        Plain(path, spec, contract, arguments.threads),
        (arguments.context, arguments.turns, widths),
    )


def compare(late: OrtDecoder, plain: Plain, asked: tuple[int, int, list[int]]) -> None:
    """asked: tokens in front, turns, widths of a pass."""
    position, turns, widths = asked
    tokens = np.random.default_rng(0).integers(0, late.vocab_size, position + 2 * turns * sum(widths)).tolist()
    for part in (late, plain):
        part.step(tokens[:position], 0)
    difference = 0.0
    for width in widths:
        seconds: list[tuple[float, float]] = []
        for turn in range(2 * turns):
            given, taken = tokens[position : position + width], {}
            for part in (late, plain) if turn % 2 else (plain, late):
                start = perf_counter()
                logits = part.step(given, position)
                taken[part] = perf_counter() - start
                if part is late:
                    expected = logits.copy()
                else:
                    found = logits.copy()
            difference = max(difference, float(np.abs(expected - found).max()))
            seconds.append((taken[late], taken[plain]))
            position += width
        times = np.array(seconds[2:])
        ratio = np.percentile(times[:, 0] / times[:, 1], [50, 25, 75])
        ours, theirs = np.median(times, 0) * 1e3
        print(
            f"{width} rows: {ours:.2f} ms with the late commit, {theirs:.2f} ms without; "
            f"{ratio[0] - 1:+.1%} ({ratio[1] - 1:+.1%} to {ratio[2] - 1:+.1%})"
        )
    print(f"logits differ by {difference:.1e} at most")


if __name__ == "__main__":
    main()
