"""What the late commit of states costs a pass of a hybrid: its target's graph against the same graph without it.

    python benchmarks/late_commit.py BUNDLE [--context 256] [--turns 40] [--threads 0] [--accepted 4] [--sessions 3]

The graph without: every recurrence is one operator and every convolution one, from the past state straight to the
present one, and nothing is kept of open rows, so that no draft could be rejected. All else is the same, the weights
too. Both run a pass of each width in turn, behind one of the same width of which `--accepted` drafts count, by default
all: these rows become certain. Prints the difference, its range over pairs of sessions, and what part it is of the pass
without.

Two sessions over one graph differ by up to 5 %, by where in memory their packed weights happen to lie. So the
difference is taken between sessions that do not pack them and read the same pages of one file. The pass without late
commit that it is a part of is one with packed weights, as the engine runs it. With `--threads 1` the time is the
process's own, for a machine that does other things too; else it is the clock's, for one that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
from hardware import describe_hardware
from numpy.typing import NDArray
from specexport.bundle import Bundle, Contract, ModelSpec
from specexport.engines.onnxruntime import graphs
from specexport.engines.onnxruntime.cpu import DecoderOptions, OrtDecoder
from specexport.engines.onnxruntime.graphs import UNUSED_OPTIMIZERS
from specexport.engines.onnxruntime.session_options import keep_exact


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
        graphs.configure(options, threads)
        keep_exact(options)
        options.log_severity_level = 3  # no warnings about weights that the removed nodes leave unused
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


class Steps(Protocol):
    def step(self, tokens: list[int], position: int) -> NDArray[np.float32]: ...


@contextmanager
def weights_of_the_file() -> Iterator[None]:
    """Sessions that are opened meanwhile do not pack their weights."""
    own = graphs.configure

    def configure(options: Any, threads: int) -> None:
        own(options, threads)
        options.add_session_config_entry("session.disable_prepacking", "1")

    with patch.object(graphs, "configure", configure):
        yield


@dataclass(frozen=True)
class Asked:
    """context: tokens in front. accepted: drafts of each pass that count."""

    context: int
    turns: int
    widths: tuple[int, ...]
    accepted: int
    clock: Callable[[], float] = perf_counter

    def advance(self, width: int) -> int:
        """Rows of a pass that count."""
        return min(self.accepted + 1, width)

    @property
    def rows(self) -> int:
        return self.context + sum(self.turns * self.advance(width) + width for width in self.widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--context", type=int, default=256, help="tokens in front of the passes")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--accepted", type=int, help="drafts of a pass that count; by default all")
    parser.add_argument("--sessions", type=int, default=3, help="over each of the two graphs")
    arguments = parser.parse_args()
    bundle = Bundle.open(arguments.bundle, check_digests=False)
    spec, contract = bundle.manifest.target, bundle.manifest.contract
    if not spec.has_states or contract.precision != "fp32":
        parser.error(f"{arguments.bundle}: this needs a target that keeps states, in fp32")
    accepted = contract.max_draft_tokens if arguments.accepted is None else arguments.accepted
    clock = process_time if arguments.threads == 1 else perf_counter
    asked = Asked(arguments.context, arguments.turns, (1, contract.widest_step), accepted, clock)
    if asked.rows > contract.capacity:
        parser.error(f"the capacity is {contract.capacity}; take fewer --turns or a shorter --context")
    print(describe_hardware())
    compare(bundle.path(spec.graphs["ort"]), spec, contract, asked, arguments.threads, arguments.sessions)


def compare(path: Path, spec: ModelSpec, contract: Contract, asked: Asked, threads: int, sessions: int) -> None:
    """Prints a line for each width."""
    late, plain = list[Steps](), list[Steps]()
    with weights_of_the_file():
        for _ in range(sessions):
            late.append(OrtDecoder(path, spec, contract, options=DecoderOptions(threads)))
            plain.append(Plain(path, spec, contract, threads))
    packed = Plain(path, spec, contract, threads)
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, asked.rows).tolist()
    parts, position, difference = (*late, *plain, packed), asked.context, 0.0
    for part in parts:
        part.step(tokens[:position], 0)
    for width in asked.widths:
        times = {part: list[float]() for part in parts}
        for turn in range(asked.turns):
            given, found = tokens[position : position + width], dict[Steps, NDArray[np.float32]]()
            for part in parts if turn % 2 else reversed(parts):
                start = asked.clock()
                logits = part.step(given, position)
                times[part].append(asked.clock() - start)
                found[part] = logits.copy()
            difference = max(difference, *(float(np.abs(found[part] - found[plain[0]]).max()) for part in late))
            position += asked.advance(width)
        _tell(width, [[_middle(times[part]) for part in kind] for kind in (late, plain, (packed,))])
    if asked.advance(max(asked.widths)) == max(asked.widths):  # the graph without drops nothing
        print(f"logits differ by {difference:.1e} at most")


def _middle(seconds: Sequence[float]) -> float:
    """In ms, without the turns that warm up."""
    return float(np.median(seconds[len(seconds) // 10 :])) * 1e3


def _tell(width: int, found: Sequence[Sequence[float]]) -> None:
    """found: ms of each session with late commit, without, and without over packed weights."""
    late, plain, (packed,) = found
    added = np.array([one - other for one in late for other in plain])
    middle, least, most = np.median(added), added.min(), added.max()
    print(
        f"{width} rows: the late commit adds {middle:.2f} ms ({least:.2f} to {most:.2f}) to {packed:.2f} ms; "
        f"{middle / packed:+.1%} ({least / packed:+.1%} to {most / packed:+.1%})"
    )


if __name__ == "__main__":
    main()
