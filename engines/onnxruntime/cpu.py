"""ONNX Runtime on the CPU: whether it can be used, and a bundle's models opened with it."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakSet

from ...bundle import Bundle, ModelSpec
from ...errors import BundleError, EngineError
from ..base import Availability, Engine, OpenedDraft
from ..catalogue import dotted, version_numbers
from .assistant import OrtAssistant
from .blocks import OrtBlockDecoder
from .decoder import DecoderOptions, OrtDecoder
from .graphs import DIALECTS, OrtGraph, open_graph
from .installed import not_importable
from .kernels import availability as availability_of_kernels
from .session_options import check_threads
from .signatures import fuse_signatures

NAME = "onnxruntime"
OLDEST = (1, 23)  # the first that runs opset 21 with int4 in blocks, and the last with wheels for Python 3.10
# For models that keep states: the oldest version that was tried with the operators of their graphs.
OLDEST_WITH_STATES = (1, 31)


def availability() -> Availability:
    """Whether onnxruntime is installed, can be imported and is new enough."""
    if (problem := not_importable("onnxruntime")) is not None:
        return problem
    import onnxruntime as ort

    if version_numbers(ort.__version__)[:2] < OLDEST:
        needed = dotted(OLDEST)
        return Availability(
            False,
            f"onnxruntime {ort.__version__} cannot run these graphs, {needed} or newer is needed",
            f"pip install 'onnxruntime>={needed}'",
        )
    return Availability(True, f"onnxruntime {ort.__version__}, CPU")


def load(bundle: Bundle, threads: int = 0, device: int = 0) -> Engine:
    """Load the bundle's models. threads: 0 for one per core within the CPU limit. `device` is ignored: it is for GPUs.

    Raises `ParameterError` for a number of threads out of range, `BundleError` for a graph that does not fit the
    manifest, and `EngineError` for a bundle that ONNX Runtime cannot run.
    """
    check_threads(threads)
    manifest = bundle.manifest
    if manifest.has_states:
        _check_version()

    def decoder(spec: ModelSpec, drafts: bool) -> OrtDecoder | OrtBlockDecoder:
        dialect = _dialect(bundle, spec)
        contract = manifest.contract.of("draft" if drafts else "target")
        fuse = None
        if (reads := spec.reads) is not None and reads.slots:
            chain = open_one(bundle.path(reads.chain[dialect])) if dialect in reads.chain else None
            paths = {"block": bundle.path(spec.graphs[dialect]), "context": bundle.path(reads.fuse[dialect])}
            return OrtBlockDecoder(paths, spec, contract, chain, threads)
        if reads is not None and dialect in reads.fuse:
            fuse = open_one(bundle.path(reads.fuse[dialect]))
            fuse.check(fuse_signatures(reads, manifest.target.tap_width))
        if reads is not None and reads.caches:
            options = DecoderOptions(threads, caches=target.caches_of(reads.caches))
            return OrtAssistant(bundle.path(spec.graphs[dialect]), spec, contract, dialect, options)
        options = DecoderOptions(threads, keeps_open=drafts, fuse=fuse)
        return OrtDecoder(bundle.path(spec.graphs[dialect]), spec, contract, dialect, options)

    graphs = WeakSet[OrtGraph | OrtDecoder | OrtBlockDecoder]()

    def open_one(path: Path) -> OrtGraph:
        graph = open_graph(path, threads)
        graphs.add(graph)
        return graph

    def open_draft(spec: ModelSpec) -> OpenedDraft:
        opened = decoder(spec, drafts=True)
        graphs.add(opened)
        return OpenedDraft(opened, opened.confidence, opened.reader)

    def close() -> None:
        for part in (*graphs, target):
            part.close()

    opened = decoder(manifest.target, drafts=False)
    assert isinstance(opened, OrtDecoder)
    target = opened
    draft = open_draft(manifest.drafts[0].model) if manifest.drafts else None
    trees = target if manifest.contract.tree_rows else None
    dialect = _dialect(bundle, manifest.target)

    def warm_up() -> None:
        """The first pass reads the weights from the disk."""
        target.step([0], 0)
        if draft is not None and draft.reader is None:
            draft.decoder.step([0], 0)

    return Engine(
        NAME,
        dialect,
        target,
        draft,
        close=close,
        open_draft=open_draft,
        trees=trees,
        taps=target.taps,
        warm_up=warm_up,
    )


def _dialect(bundle: Bundle, spec: ModelSpec) -> str:
    """Which of the model's graphs this host runs. Raises `BundleError`, and `EngineError` that says what to install."""
    made = [dialect for dialect in DIALECTS if dialect in spec.graphs]
    if not made:
        raise BundleError(f"{bundle.root} has no graph of {spec.source} for {NAME}; build the bundle again")
    if made[0] == "kernels" and not (kernels := availability_of_kernels()).usable:
        if len(made) == 1:
            raise EngineError(
                f"{bundle.root} runs on specexport-kernels alone, and {kernels.detail}; {kernels.remedy}, or build the "
                "bundle with --portable",
                code="engine_unavailable",
            )
        return made[1]
    return made[0]


def _check_version() -> None:
    """Raises `EngineError` if onnxruntime is too old for models that keep states."""
    import onnxruntime as ort

    if version_numbers(ort.__version__)[:2] < OLDEST_WITH_STATES:
        needed = dotted(OLDEST_WITH_STATES)
        raise EngineError(
            f"onnxruntime {ort.__version__} is too old for layers that keep recurrent or convolution states, {needed} "
            f"is needed; pip install 'onnxruntime>={needed}'",
            code="engine_unavailable",
        )
