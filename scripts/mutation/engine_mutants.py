"""Faults in decoders, in rounds on the device, and in the code below them."""

from __future__ import annotations

from .mutant import Mutant

KERNELS = "engines/onnxruntime/kernels.py"
ORT_DECODER, ORT_GRAPH, ORT_CUDA = (f"engines/onnxruntime/{name}.py" for name in ("decoder", "device_graph", "cuda"))
PROTOCOL, STAGING, DEVICE = (f"engines/cuda/{name}.py" for name in ("protocol", "staging", "device"))
DECODER, ROUND, PLACE_ROWS, ENGINE = (
    f"engines/cuda/{name}.py" for name in ("decoder", "round_graph", "place_rows", "engine")
)
ON_CUDA = ("tests/engines/cuda",)
ON_ORT, WITH_STATES = ((f"tests/engines/onnxruntime/test_device_{name}.py",) for name in ("graph", "states"))
OF_ORT_CUDA = ("tests/engines/onnxruntime/test_cuda.py",)
OF_KERNELS = ("tests/engines/onnxruntime/test_kernels.py",)
ON_TENSORRT = (
    "tests/engines/cuda/test_decoder.py",
    "tests/engines/cuda/test_round_graph_sequence.py",
    "tests/engines/tensorrt/test_engine.py",
)

ENGINES = (
    Mutant(
        "a precision that the named GPUs do not run is only found when it builds",
        "editing/compile.py",
        "_check_capabilities(bundle, engine, options)",
        "pass",
        ("tests/editing/test_compile.py",),
    ),
    Mutant(
        "an operator that TensorRT lacks is only found when it builds",
        "editing/compile.py",
        "refuse_newer(lib, job.graph)",
        "pass",
        ("tests/editing/test_compile.py",),
    ),
    Mutant(
        "an operator is refused by the version that first has it",
        "engines/tensorrt/api.py",
        "lib.version < first and bytes([0x22, len(operator)]) + operator.encode() in content",
        "lib.version[:1] < first and bytes([0x22, len(operator)]) + operator.encode() in content",
        ("tests/engines/tensorrt/test_versions.py",),
    ),
    Mutant(
        "a pass on the CPU looks at fewer columns than it writes",
        ORT_DECODER,
        "size = (count, self._contract.span(end) if self._spans else 0)",
        "size = (count, self._contract.span(max(1, position)) if self._spans else 0)",
        ("tests/engines/onnxruntime/test_cpu.py",),
    ),
    Mutant(
        "a captured graph is not waited for",
        PROTOCOL,
        """            self._device.launch(graph)
            self._device.synchronize()""",
        "            self._device.launch(graph)",
        (*ON_CUDA, *ON_TENSORRT),
    ),
    Mutant(
        "work is captured before it has run",
        PROTOCOL,
        """work()
self._device.synchronize()
self._graphs[key] = self._device.capture(work)""",
        "self._graphs[key] = self._device.capture(work)",
        (*ON_CUDA, *ON_TENSORRT),
    ),
    Mutant(
        "old plans of several profiles are not proved",
        "editing/compile.py",
        "if engine == enterprise.NAME and lib.version < SOUND_PROFILES:",
        "if engine == enterprise.NAME and lib.version < (9, 0):",
        ("tests/editing/test_compile.py",),
    ),
    Mutant(
        "an input that decides shapes is bound to the device's memory",
        "engines/tensorrt/network_checks.py",
        "if tensor.is_shape_tensor",
        "if tensor is None",
        ("tests/engines/tensorrt/test_network_checks.py",),
    ),
    Mutant(
        "whether a plan fits is asked of whatever GPU is current",
        "engines/tensorrt/engine.py",
        "with device.entered():  # TensorRT asks the current device",
        "if True:",
        ("tests/engines/tensorrt/test_load.py",),
    ),
    Mutant(
        "places of a slot by bytes",
        STAGING,
        "Address(self.address + index * self.host.itemsize)",
        "Address(self.address + index)",
        (*ON_CUDA, *ON_TENSORRT),
    ),
    Mutant(
        "slots that are not aligned",
        STAGING,
        "return -(-size // ALIGNMENT) * ALIGNMENT",
        "return size",
        (*ON_CUDA, *ON_TENSORRT),
    ),
    Mutant(
        "device memory is not cleared",
        DEVICE,
        'self._call("cuMemsetD8Async", address, 0, size, self.stream)',
        "pass",
        ON_CUDA,
    ),
    Mutant(
        "a failed capture stays open",
        DEVICE,
        'status, graph = self._driver.attempt("cuStreamEndCapture", self.stream)',
        "status, graph = -1, None",
        ON_CUDA,
    ),
    Mutant(
        "a round's graph is known by its rule and width alone",
        ROUND,
        "(rule, k, span)",
        "(rule, k)",
        ON_TENSORRT,
    ),
    Mutant(
        "the draft's first pass is judged by its first row",
        ROUND,
        "copy(draft.logits, draft.logits + self._row_bytes, self._row_bytes)",
        "pass",
        ON_TENSORRT,
    ),
    Mutant(
        "one distribution for all draft tokens",
        ROUND,
        "copy(self._draft_probs + index * self._row_bytes, self._drawn, self._row_bytes)",
        "copy(self._draft_probs, self._drawn, self._row_bytes)",
        ON_TENSORRT,
    ),
    Mutant(
        "a lost logit is a token",
        ROUND,
        "self._target.vocab_size if lost else next_token",
        "next_token",
        ON_TENSORRT,
    ),
    Mutant(
        "a pass on the device looks at fewer columns than it writes",
        DECODER,
        "return self._contract.span(position + width)",
        "return self._contract.span(max(1, position))",
        ON_TENSORRT,
    ),
    Mutant(
        "rows are placed from the position of another pass",
        PLACE_ROWS,
        "add.u64 %d7, %d6, %d7;",
        "mov.u64 %d7, %d6;",
        ("tests/engines/cuda/test_place_rows.py",),
    ),
    Mutant(
        "operators older than a graph asks for are taken", KERNELS, "if found < operators:", "if not found:", OF_KERNELS
    ),
    Mutant(
        "a library of another processor ends in a traceback",
        KERNELS,
        "(OSError, AttributeError)",
        "AttributeError",
        OF_KERNELS,
    ),
    Mutant("another library ends in a traceback", KERNELS, "(OSError, AttributeError)", "OSError", OF_KERNELS),
    Mutant(
        "an instruction set that the host lacks is taken", KERNELS, "if runs is None:", "if runs == '':", OF_KERNELS
    ),
    Mutant("that a set was forced is kept quiet", KERNELS, "if wanted", "if False", OF_KERNELS),
    Mutant(
        "a package that this host cannot run stops all graphs",
        KERNELS,
        "availability().usable",
        "True",
        OF_KERNELS,
        "library",
    ),
    Mutant(
        "an engine that cannot run the bundle ends the load",
        "engines/registry.py",
        "error.code not in CANNOT_RUN or len(built) == 1",
        "True",
        ("tests/engines/test_registry.py",),
    ),
    Mutant(
        "an engine that fails is passed over",
        "engines/registry.py",
        "error.code not in CANNOT_RUN or len(built) == 1",
        "len(built) == 1",
        ("tests/engines/test_registry.py",),
    ),
    Mutant(
        "a host without a GPU is told to replace onnxruntime",
        ORT_CUDA,
        "if _missing(DRIVER):",
        "if not DRIVER:",
        OF_ORT_CUDA,
    ),
    Mutant(
        "the second run of ONNX Runtime allocates, in a capture",
        ORT_CUDA,
        "options.enable_mem_pattern = False",
        "options.enable_mem_pattern = True",
        OF_ORT_CUDA,
    ),
    Mutant(
        "flash attention is asked of GPUs that lack it",
        ORT_CUDA,
        "if device.compute_capability >= FLASH[0]:",
        "if FLASH:",
        OF_ORT_CUDA,
    ),
    Mutant("ONNX Runtime captures its runs itself", ORT_GRAPH, '"-1"', '"1"', ON_ORT),
    Mutant(
        "a run of ONNX Runtime waits for the GPU",
        ORT_GRAPH,
        '{"gpu_graph_id": "-1", "disable_synchronize_execution_providers": "1"}',
        '{"gpu_graph_id": "-1"}',
        ON_ORT,
    ),
    Mutant(
        "ONNX Runtime is said to read nothing on the host",
        ORT_GRAPH,
        "frozenset({*COUNTS} & {*self.inputs})",
        "frozenset()",
        WITH_STATES,
    ),
    Mutant(
        "outputs of ONNX Runtime have no shapes but the graph's own",
        ORT_GRAPH,
        "{**shapes, **given}",
        "{**shapes}",
        ON_ORT,
    ),
    Mutant("a closed graph holds its session and the GPU's memory", ORT_GRAPH, "self._session = None", "", ON_ORT),
    Mutant(
        "prompts are replayed although their counts are read on the host",
        DECODER,
        "if self._graph.on_host:",
        "if False:",
        WITH_STATES,
    ),
    Mutant(
        "a prompt's pass that is not captured is not waited for",
        DECODER,
        "pass_()\nself._device.synchronize()",
        "pass_()",
        WITH_STATES,
    ),
    Mutant(
        "graphs with columns have one span",
        ENGINE,
        'if not any("columns" in graph.inputs for graph in loaded.values()):',
        "if True:",
        ON_TENSORRT,
    ),
)
