"""`specexport compile`: the plans of a bundle for TensorRT or TensorRT-RTX, made where the library is.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..atomic import output_errors, temporary_folder
from ..bundle import Bundle, FileEntry, Plan, sha256
from ..engines.base import OpenedDraft
from ..engines.catalogue import LIBRARIES, capability_of, dotted, too_old
from ..engines.cuda.driver import find_gpu
from ..engines.tensorrt import enterprise
from ..engines.tensorrt.api import Library, dialect_for, refuse_newer
from ..engines.tensorrt.compile import (
    CompileJob,
    CompileOptions,
    compile_graph,
    compiler,
    hidden_profiles,
    model_profiles,
)
from ..engines.tensorrt.monitor import STEPS_PER_GRAPH
from ..engines.tensorrt.network_checks import check_capture, check_model
from ..errors import BundleError, EngineError, ProofError
from ..runtime.proofs.parity import arithmetic, measure, passed
from ..runtime.proofs.reference_file import load_reference
from .progress import BuildProgress
from .replace_manifest import UNCHANGED, replace_manifest

ENGINES = "engines"  # where in a bundle each has the folder of its plans
SOUND_PROFILES = (10, 8)  # the first version of TensorRT that computes the same with several profiles as with one


def compile_bundle(bundle: Bundle, engine: str, options: CompileOptions, progress: BuildProgress) -> Bundle:
    """Compile the bundle's models for `engine`, and remove its earlier plans.

    Plans are new files under `engines/`. When all are written, the manifest is replaced in one step. Until then,
    whatever happens, the bundle is unchanged.

    TensorRT before 10.8 may compute wrong numbers where a plan has several profiles, as one for each width (its 10.8
    changelog). So its plans are first compared with the recorded logits, which takes passes of every width.

    Raises `EngineError` when this host or the library cannot, `BundleError` for a bundle without the graphs that are
    needed, `OutputError` when something cannot be written, `ProofError` for plans that compute wrong numbers.
    """
    if engine not in LIBRARIES:
        raise EngineError(
            f"there is nothing to compile for {engine!r}; "
            f"plans are made for {' and '.join(LIBRARIES)}, name one of them",
            "engine",
        )
    lib = compiler(engine, options)
    _check_capabilities(bundle, engine, options)
    jobs = _jobs(bundle, lib)
    template = _template(lib, engine, options)
    folder = bundle.root / ENGINES / engine
    with output_errors(UNCHANGED, folder), temporary_folder(folder) as temporary:
        with progress.stage(f"compile {engine}", STEPS_PER_GRAPH * len(jobs)) as step:
            for graph, job in jobs.items():
                announce = partial(_announce, step, job.graph.stem)
                compile_graph(lib, job, temporary / _plan_name(graph), options, announce)
        if engine == enterprise.NAME and lib.version < SOUND_PROFILES:
            _prove(bundle, template, list(jobs), temporary)
        compiled = _put_into_place(bundle, template, list(jobs), temporary)
    for path in folder.glob("*.plan"):  # earlier plans, and what a killed process left
        if path.relative_to(bundle.root).as_posix() not in compiled.manifest.files:
            path.unlink(missing_ok=True)
    return compiled


def _check_capabilities(bundle: Bundle, engine: str, options: CompileOptions) -> None:
    """As `build` does: a library may compile what its GPUs do not run."""
    for model in bundle.manifest.pair.values():
        form = bundle.manifest.contract.precision if model.format == "float" else model.format
        for capability in filter(None, map(capability_of, options.compute_capabilities)):
            if reason := too_old(engine, form, capability):
                raise EngineError(
                    f"{bundle.root} has {model.source} in {form}, which engine {engine} cannot run {reason}",
                    "compute_capabilities",
                )


def _jobs(bundle: Bundle, lib: Library) -> dict[str, CompileJob]:
    """By the graph's path in the bundle."""
    manifest, contract = bundle.manifest, bundle.manifest.contract
    dialect, engine = dialect_for(lib.name, lib.version), lib.name.replace("_", "-")
    jobs = {}
    for role, model in manifest.pair.items():
        if dialect not in model.graphs:
            if model.format != "float" and lib.name != "tensorrt":
                raise BundleError(
                    f"{bundle.root} has {model.source} in the {model.format} of another engine; "
                    f"build a separate bundle with --engine {engine}",
                    "engine",
                )
            version = ".".join(map(str, lib.version[:2]))
            again = f"--engine {engine}" + (f" --tensorrt-version {version}" if engine == "tensorrt" else "")
            cpu = ", and with --engine onnxruntime if the CPU is still wanted" * ("onnxruntime" in manifest.engines)
            raise BundleError(
                f"{bundle.root} has no {dialect} graph of {model.source}, which {lib.title} needs; "
                f"build it again with {again}{cpu}",
                "engine",
                code="not_built_for_engine",
            )
        check = partial(check_model, trt=lib.trt, spec=model, contract=contract, dialect=dialect)
        graph = model.graphs[dialect]
        reads = model.reads
        profiles = model_profiles(contract, role, reads.width if reads else 0)
        jobs[graph] = CompileJob(bundle.path(graph), profiles, check)
        if reads is not None and reads.fuse:
            width, fuse = len(reads.taps) * manifest.target.tap_width, reads.fuse[dialect]
            jobs[fuse] = CompileJob(bundle.path(fuse), hidden_profiles(contract, width), check_capture)
    for job in jobs.values():
        refuse_newer(lib, job.graph)
    return jobs


def _plan_name(graph: str) -> str:
    return f"{Path(graph).stem}.plan"


def _template(lib: Library, engine: str, options: CompileOptions) -> Plan:
    """A plan but for its graph and its file."""
    capabilities = options.compute_capabilities
    if engine == "tensorrt":  # compiled for the GPU at hand
        major, minor = find_gpu().compute_capability
        capabilities = (f"{major}.{minor}",)
    return Plan(engine, "", "", lib.trt.__version__, capabilities, options.version_compatible)


def _prove(bundle: Bundle, template: Plan, graphs: list[str], temporary: Path) -> None:
    """Compare the plans in the folder `temporary` with the Hugging Face logits. Raises `ProofError`."""
    manifest = bundle.manifest
    files = {graph: (temporary / _plan_name(graph)).relative_to(bundle.root).as_posix() for graph in graphs}
    plans = tuple(replace(template, graph=graph, file=file) for graph, file in files.items())
    engine = enterprise.load(Bundle(bundle.root, replace(manifest, plans=plans)))
    try:
        for role, model in manifest.pair.items():
            opened = OpenedDraft(engine.target) if role == "target" else engine.draft
            assert opened is not None
            reference, kind = load_reference(bundle.path(model.reference)), arithmetic(model, manifest.contract)
            for proof in measure(opened, reference, (engine.name, engine.dialect), role, kind):
                passed(proof)
    except ProofError as error:
        raise ProofError(
            f"{str(error).partition('; ')[0]}: TensorRT {template.version} computes wrong numbers with several "
            f"profiles; install {dotted(SOUND_PROFILES)} or newer, or build the bundle for another engine"
        ) from None
    finally:
        engine.close()


def _announce(step: Callable[[str], None], name: str, phase: str) -> None:
    step(f"{name}: {phase}")


def _put_into_place(bundle: Bundle, template: Plan, graphs: list[str], temporary: Path) -> Bundle:
    """Move the plans into the bundle and replace the manifest."""
    manifest = bundle.manifest
    replaced = [plan.file for plan in manifest.plans if plan.engine == template.engine]
    plans, entries, placed = [], {}, {}
    for graph in graphs:
        made = temporary / _plan_name(graph)
        digest = sha256(made)
        # Named by content, so that no file of the bundle as it was is touched.
        name = f"{ENGINES}/{template.engine}/{made.stem}-{digest[:8]}.plan"
        plans.append(replace(template, graph=graph, file=name))
        entries[name] = FileEntry(made.stat().st_size, digest)
        placed[name] = made
    # Placed first, so that it is the first choice of a host that can run it.
    engines = manifest.engines if template.engine in manifest.engines else (template.engine, *manifest.engines)
    files = {name: entry for name, entry in manifest.files.items() if name not in replaced}
    others = (plan for plan in manifest.plans if plan.engine != template.engine)
    compiled = replace(manifest, engines=engines, plans=(*others, *plans), files=files | entries)
    return replace_manifest(bundle, compiled, temporary, placed)
