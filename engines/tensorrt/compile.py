"""Compiles an ONNX graph to a plan, a file that TensorRT's runtime loads. One module for TensorRT and TensorRT-RTX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...atomic import write_whole
from ...bundle import HIDDEN, Contract, Role
from ...errors import EngineError, ParameterError
from ..catalogue import LIBRARIES
from ..cuda.driver import find_gpu
from .api import TITLES, Library, compute_capabilities, dialect_for, library
from .monitor import Monitor, progress_monitor
from .network_checks import attention_layers

Shape = tuple[int, ...]
# The smallest, usual and largest shape of every input with a dynamic shape.
Profile = Mapping[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True)
class CompileJob:
    """One graph to compile. graph: an ONNX file. check: yields the problems of the parsed network."""

    graph: Path
    profiles: tuple[Profile, ...]
    check: Callable[[Any], Iterator[str]]


@dataclass(frozen=True)
class CompileOptions:
    """compute_capabilities: those of the GPUs to compile for, e.g. `8.9`; with none, the library decides.

    version_compatible: for the lean runtime too.
    Raises `ParameterError` for malformed or repeated compute capabilities.
    """

    compute_capabilities: tuple[str, ...] = ()
    version_compatible: bool = False

    def __post_init__(self) -> None:
        for text in self.compute_capabilities:
            if not re.fullmatch(r"\d{1,2}\.\d", text):
                raise ParameterError(f"--compute-capability is {text}; it must look like 8.9", "compute_capability")
        if len(set(self.compute_capabilities)) < len(self.compute_capabilities):
            raise ParameterError(
                f"--compute-capability names {', '.join(self.compute_capabilities)}; give each one once",
                "compute_capability",
            )

    @property
    def arguments(self) -> tuple[tuple[str, ...], ...]:
        """The options that differ from the defaults, as arguments of the command line."""
        arguments = (("--compute-capability", text) for text in self.compute_capabilities)
        return (*arguments, *([("--version-compatible",)] if self.version_compatible else []))


# Options that a library does not support; it ignores most of them silently.
LACKING = {
    "tensorrt": {"--compute-capability": "it compiles for the GPU of this host"},
    "tensorrt_rtx": {
        "--version-compatible": "its plans run only on the version that made them",
    },
}


def check_options(name: str, options: CompileOptions) -> None:
    """Raises `EngineError` for options that the library `name` does not support."""
    for option, *_ in options.arguments:
        if reason := LACKING[name].get(option):
            raise EngineError(f"{TITLES[name]} does not support {option}: {reason}; leave it out")


def compiler(engine: str, options: CompileOptions) -> Library:
    """The library that compiles for `engine`. Raises `EngineError` if it cannot, on this host or with these options."""
    lib = library(LIBRARIES[engine])
    dialect_for(lib.name, lib.version)
    check_options(lib.name, options)
    known = compute_capabilities(lib)
    for text in options.compute_capabilities:
        if text not in known:
            raise EngineError(f"{lib.title} cannot compile for compute capability {text}; it has {', '.join(known)}")
    if lib.name == "tensorrt":  # times kernels on the GPU that will run them; TensorRT-RTX needs none
        find_gpu()
    return lib


def describe_compiler(engine: str) -> str:
    """One line for `specexport doctor`. Raises `EngineError` if this host cannot compile for `engine`."""
    lib = compiler(engine, CompileOptions())
    known = f"compute capabilities {', '.join(compute_capabilities(lib))}"
    device = find_gpu().name if lib.name == "tensorrt" else known
    return f"{lib.title}, for {device}, graphs of the dialect {dialect_for(lib.name, lib.version)}"


COLUMNS = "columns"  # the input whose size is the span
# The largest cache of which a draft's passes of width 1 read all rows, used or not.
WHOLE_CACHE = 4096


def model_profiles(contract: Contract, role: Role, reads: int = 0) -> tuple[Profile, ...]:
    """The profiles of a model graph, in the order of `contract.widths`. reads: H, of a draft that reads hidden states.

    A draft runs k - 1 of its k passes at width 1, which is static, as is its span: then products are those of a matrix
    and a vector, and attention reads the cache where it lies instead of a copy. Of a Llama on TensorRT-RTX 1.7 that is
    8 kernels a layer instead of 12. The price is a second layout of the weights, as large as the first. A target runs
    at width 1 where nothing is drafted only; its width 1 also admits 2, and shares the layout of the others.
    Other spans are dynamic even if there is but one: of a fixed one, TensorRT-RTX expands keys and values to all heads.
    """
    spans = contract.spans
    least = spans[0] if len(spans) > 1 else max(1, spans[0] // 2)
    columns: tuple[Shape, Shape, Shape] = ((least,), (spans[len(spans) // 2],), (spans[-1],))
    hidden = hidden_profiles(contract, reads) if reads else ({},) * len(contract.widths)
    profiles: list[Profile] = [
        {"tokens": ((1, width), (1, width), (1, max(2, width))), COLUMNS: columns, **more}
        for width, more in zip(contract.widths, hidden, strict=True)
    ]
    if role == "draft":
        single = {name: (shape,) * 3 for name, (shape, *_) in profiles[0].items()}
        profiles[0] = single | {COLUMNS: ((spans[-1],),) * 3 if spans[-1] <= WHOLE_CACHE else columns}
    return tuple(profiles)


def hidden_profiles(contract: Contract, size: int) -> tuple[Profile, ...]:
    """Of an input of hidden states `[1, T, size]`, as of `tokens`."""
    return tuple({HIDDEN: ((1, width, size), (1, width, size), (1, max(2, width), size))} for width in contract.widths)


def first_shared(profiles: Sequence[Profile]) -> int:
    """From which profile on they share the layout of the weights: a first one of a single width, whatever its spans,
    has one of its own.
    """
    widths = [shapes for name, shapes in profiles[0].items() if name != COLUMNS] if profiles else []
    return 2 if widths and all(least == largest for least, _, largest in widths) else 1


def compile_graph(
    lib: Library, job: CompileJob, plan: Path, options: CompileOptions, step: Callable[[str], None]
) -> None:
    """Compile the job's graph into the file `plan`, which is written whole or not at all.

    step: called at the start of each of `STEPS_PER_GRAPH` parts, with its name.
    Raises `EngineError` with the reason if the graph cannot be parsed or compiled, or fails a check. An interrupt ends
    the build.
    """
    builder = _builder(lib)
    network, _parser = _parse(lib, builder, job.graph)  # the parser owns the weights
    _allow_decomposition(network, lib.trt)
    for problem in job.check(network):
        raise EngineError(f"{job.graph.name} must not be compiled: {problem}; build the bundle again")
    config = _config(lib, builder, options)
    shared = first_shared(job.profiles)
    for index, profile in enumerate(job.profiles):
        config.add_optimization_profile(_profile(builder, profile, shares=index >= shared))
    monitor = Monitor(step)
    config.progress_monitor = progress_monitor(lib.trt, monitor)
    lib.forget()
    # In a thread: in the main one, Ctrl-C would only take effect when the build is done.
    with ThreadPoolExecutor(1) as pool:
        # Starts the thread now: a pool loses track of a thread if it is interrupted while it starts it.
        pool.submit(int).result()
        try:
            building = pool.submit(builder.build_serialized_network, network, config)
            while not building.done():
                # any thread may receive the signal, but it takes effect only when this one wakes up
                wait([building], timeout=0.2)
            serialized = building.result()
        except BaseException:
            monitor.cancel()
            raise
    if serialized is None:
        raise EngineError(f"{lib.title} cannot compile {job.graph.name}: {lib.reason()}")
    monitor.finish()
    write_whole(plan, memoryview(serialized))


def _builder(lib: Library) -> Any:
    lib.forget()
    try:
        return lib.trt.Builder(lib.logger)
    except (TypeError, RuntimeError):  # the bindings raise these for a null pointer
        raise EngineError(f"{lib.title} cannot compile on this host: {lib.reason()}") from None


def _parse(lib: Library, builder: Any, graph: Path) -> tuple[Any, Any]:
    """The network and its parser, which must be kept alive as long as the network."""
    trt = lib.trt
    # For 10.x; TensorRT 11 and TensorRT-RTX have no other kind of network, and ignore or lack the flag.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, lib.logger)
    if not parser.parse_from_file(str(graph)):
        problems = [_problem(parser.get_error(index)) for index in range(parser.num_errors)]
        raise EngineError(f"{lib.title} cannot read {graph.name}: {', '.join(dict.fromkeys(problems))}")
    return network, parser


def _problem(error: Any) -> str:
    words = " ".join(error.desc().split())
    place = getattr(error, "node_operator", str)() or getattr(error, "node_name", str)()
    return f"{place}: {words}" if place else words


def _allow_decomposition(network: Any, trt: Any) -> None:
    """Let attention layers without a kernel of their own be made of other kernels, instead of failing the build; in
    fp32 no attention layer has one.
    """
    for layer in attention_layers(network, trt):
        layer.attention.decomposable = True


def _config(lib: Library, builder: Any, options: CompileOptions) -> Any:
    trt, config = lib.trt, builder.create_builder_config()
    # On by default; a bundle in fp32 is proved in fp32.
    config.clear_flag(trt.BuilderFlag.TF32)
    # TensorRT-RTX, which otherwise may allocate while a graph is captured
    if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    if options.compute_capabilities:
        config.num_compute_capabilities = len(options.compute_capabilities)
        for index, text in enumerate(options.compute_capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + text.replace(".", "")), index)
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        # A runtime in the plan would be code that runs on the host, and loading a bundle must not run code.
        config.set_flag(trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME)
    strict = getattr(trt.BuilderFlag, "STRICT_NANS", None)  # from 10.6 on; rules rely on NaN passing through
    if strict is not None:
        config.set_flag(strict)
    config.max_aux_streams = 0  # a round is one stream; more would take scratch memory and events
    return config


def _profile(builder: Any, shapes: Profile, shares: bool) -> Any:
    profile = builder.create_optimization_profile()
    if shares:  # the weights as earlier profiles have them: TensorRT may else lay them out again for each
        profile.extra_memory_target = 0.0
    for name, (least, usual, largest) in shapes.items():
        profile.set_shape(name, least, usual, largest)
    return profile
