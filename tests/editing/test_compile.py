"""`compile_bundle` through TensorRT-RTX: what the bundle holds afterwards, and that it stays what it was until then."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from specexport.bundle import MANIFEST, Bundle, Contract, list_files, sha256, write_manifest
from specexport.editing import compile as module
from specexport.editing import replace_manifest as replacing
from specexport.editing.compile import compile_bundle
from specexport.editing.progress import Silent
from specexport.engines.cuda.driver import Gpu
from specexport.engines.tensorrt import enterprise
from specexport.engines.tensorrt.api import SINCE, Library, library, plans_of
from specexport.engines.tensorrt.compile import CompileJob, CompileOptions
from specexport.engines.tensorrt.monitor import STEPS_PER_GRAPH
from specexport.errors import EngineError, OutputError, ProofError
from specexport.runtime.proofs.parity import ReferenceStep, logits_of, schedule
from specexport.runtime.proofs.reference_file import save_reference
from support.fake_context import IExecutionContext
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT
from support.fake_tensorrt import plan as fake_plan
from support.micro import VOCAB, Micro, MicroDecoder, micro_bundle
from support.pair import Notes
from support.refusals import refused

trt = pytest.importorskip("tensorrt_rtx")
ENGINE = "tensorrt-rtx"


@pytest.fixture
def bundle(compilable: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compilable, tmp_path / "copy.bundle"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plans of a few bytes, for what is not about compiling. What was asked for, in order."""
    asked: list[str] = []

    def compile_graph(lib: Library, job: CompileJob, plan: Path, *given: Any) -> None:
        asked.append(job.graph.name)
        plan.write_bytes(os.urandom(8))

    monkeypatch.setattr(module, "compile_graph", compile_graph)
    return asked


def compiled(root: Path, engine: str = ENGINE, progress: Any = None, **options: Any) -> Bundle:
    return compile_bundle(Bundle.open(root), engine, CompileOptions(**options), progress or Silent())


def content(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): sha256(path) for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_compiled_bundle(bundle: Path) -> None:
    before, inode = Bundle.open(bundle).manifest, (bundle / MANIFEST).stat().st_ino
    progress = Notes()
    returned = compiled(bundle, progress=progress)
    assert (bundle / MANIFEST).stat().st_ino != inode  # replaced in one step, not written over
    opened = Bundle.open(bundle)  # with every digest
    assert opened.manifest == returned.manifest
    assert opened.manifest.engines == (ENGINE, "onnxruntime")  # the first choice, where it can run
    assert dataclasses.replace(opened.manifest, engines=before.engines, plans=(), files=before.files) == before
    assert set(opened.manifest.files) == set(list_files(bundle))

    plans = plans_of(opened, ENGINE)
    graphs = {model.graphs["onnx"] for model in before.models.values()}
    assert set(plans) == graphs
    for graph, plan in plans.items():
        assert plan.file.startswith(f"engines/{ENGINE}/{Path(graph).stem}-")
        assert (plan.version, plan.compute_capabilities) == (trt.__version__, ())
        assert not plan.version_compatible
        # That it is a plan, and of this version, is all that can be told without a GPU.
        runtime = trt.Runtime(library("tensorrt_rtx").logger)
        assert runtime.get_engine_validity((bundle / plan.file).read_bytes())[1] == 0
    assert progress.stages == [(f"compile {ENGINE}", STEPS_PER_GRAPH * len(graphs))]
    assert len(progress.steps) == STEPS_PER_GRAPH * len(graphs)
    assert progress.steps[0] == f"compile {ENGINE}: target-onnx: building engine"


def test_a_gpu_that_does_not_run_the_bundles_precision(bundle: Path, quick: list[str]) -> None:
    before = content(bundle)
    with refused(EngineError, "fp32", "7.5; that takes 8.0 or later", field="compute_capabilities"):
        compiled(bundle, compute_capabilities=("8.9", "7.5"))
    assert (content(bundle), quick) == (before, [])


def test_compiling_again_replaces_the_plans(bundle: Path, quick: list[str]) -> None:
    first = compiled(bundle, compute_capabilities=("8.9",))
    assert {plan.compute_capabilities for plan in first.manifest.plans} == {("8.9",)}
    stray = bundle / f"engines/{ENGINE}/killed-12345678.plan"
    stray.touch()
    second = compiled(bundle)
    assert len(second.manifest.plans) == len(first.manifest.plans)
    assert {plan.compute_capabilities for plan in second.manifest.plans} == {()}
    assert second.manifest.engines == first.manifest.engines
    names = {plan.file for plan in second.manifest.plans}
    assert {path.relative_to(bundle).as_posix() for path in (bundle / "engines").rglob("*.plan")} == names
    assert set(Bundle.open(bundle).manifest.files) == set(list_files(bundle))


class Renamed:
    """TensorRT-RTX under another version: a TensorRT that compiles here."""

    def __init__(self, version: str) -> None:
        self.__version__ = version

    def __getattr__(self, name: str) -> Any:
        return getattr(trt, name)


@pytest.fixture
def orin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def install(version: str) -> None:
        lib = Library("tensorrt", Renamed(version))
        monkeypatch.setattr(module, "compiler", lambda engine, options: lib)
        monkeypatch.setattr(module, "find_gpu", lambda: Gpu("Orin", (8, 7), "12.6", 8))

    return install


def test_another_engine_keeps_its_plans(bundle: Path, quick: list[str], orin: Callable[[str], None]) -> None:
    rtx = compiled(bundle).manifest
    orin("10.16.1")
    both = compiled(bundle, "tensorrt", version_compatible=True)
    assert both.manifest.engines == ("tensorrt", ENGINE, "onnxruntime")
    assert set(both.manifest.plans) > set(rtx.plans)
    for plan in plans_of(both, "tensorrt").values():
        assert (plan.version, plan.compute_capabilities) == ("10.16.1", ("8.7",))
        assert plan.version_compatible
    assert set(plans_of(Bundle.open(bundle), ENGINE)) == {plan.graph for plan in rtx.plans}


def test_an_operator_that_this_version_lacks_ends_it_before_anything_is_built(
    bundle: Path, quick: list[str], orin: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    orin("10.16.1")
    monkeypatch.setitem(SINCE, "Attention", (12, 0))
    with refused(EngineError, "target-onnx.onnx", "Attention", "12.0"):
        compiled(bundle, "tensorrt")
    assert quick == []


LOOP = """<ir_version: 8, opset_import: ["": 18]>
rule (float[8] x, int64 count) => (float[8] y) {
    go = Constant <value = bool {1}> ()
    y = Loop (count, go, x) <body = step (int64 i, bool before, float[8] a) => (bool after, float[8] b) {
        after = Identity (before)
        b = Add (a, a)
    }>
}"""


def test_graphs_that_are_not_what_the_manifest_says(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph is checked when it is parsed; see test_tensorrt_checks.py."""

    def refuses(opened: Bundle, message: str) -> None:
        with refused(EngineError, "compiled"):
            compile_bundle(opened, ENGINE, CompileOptions(), Silent())

    opened, jobs = Bundle.open(bundle), module._jobs
    target = dataclasses.replace(
        opened.manifest.target, layers=(*opened.manifest.target.layers, opened.manifest.target.layers[0])
    )
    refuses(
        Bundle(bundle, dataclasses.replace(opened.manifest, target=target)),
        "target-onnx.onnx must not be compiled: past.2.key is no input of the network",
    )
    graph = opened.manifest.target.graphs["onnx"]
    (bundle / graph).write_bytes(onnx.parser.parse_model(LOOP).SerializeToString())
    monkeypatch.setattr(module, "_jobs", lambda bundle, lib: {graph: replace(jobs(bundle, lib)[graph], profiles=())})
    refuses(opened, f"{Path(graph).name} must not be compiled: .* a CUDA graph cannot hold")


def fail(*arguments: Any) -> None:
    raise OSError(28, "No space left on device", "some.plan")


@pytest.mark.parametrize("place", ["compile_graph", "write_manifest", "sha256"])
def test_a_full_disk_leaves_the_bundle_as_it_was(
    place: str, bundle: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(bundle)
    before = content(bundle)
    monkeypatch.setattr(replacing if place == "write_manifest" else module, place, fail)
    with refused(OutputError, "some.plan", code="disk_full"):
        compiled(bundle)
    assert content(bundle) == before


def test_plans_that_come_out_the_same_are_kept_when_the_rest_fails(
    bundle: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the names of those that the bundle holds."""
    monkeypatch.setattr(module, "compile_graph", lambda lib, graph, plan, *given: plan.write_bytes(b"the same"))
    compiled(bundle)
    before = content(bundle)
    monkeypatch.setattr(replacing, "write_manifest", fail)
    with pytest.raises(OutputError):
        compiled(bundle)
    assert content(bundle) == before


def test_without_torch(bundle: Path) -> None:
    """A Jetson compiles with numpy, tokenizers and its TensorRT."""
    blocked = (
        "torch",
        "transformers",
        "safetensors",
        "onnx",
        "onnx_ir",
        "onnxscript",
        "onnxruntime",
        "jinja2",
        "click",
        "rich",
        "tokenizers",
    )
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys({blocked!r}))
        from specexport.bundle import Bundle
        from specexport.editing import compile as module
        from specexport.editing.progress import Silent
        module.compile_graph = lambda lib, graph, plan, *rest: plan.write_bytes(b"plan")
        opened = Bundle.open({str(bundle)!r})
        print(len(module.compile_bundle(opened, {ENGINE!r}, module.CompileOptions(), Silent()).manifest.plans))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("wrong", [None, 0, 3, 5])
def test_old_plans_of_several_profiles_are_proved_at_every_width(
    wrong: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT 10.3 to 10.7 may compute wrong numbers there, in silence: here in the passes of one profile."""
    contract = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
    opened, device = micro_bundle(tmp_path, contract, dialect="rows"), FakeDevice()
    for role, model in opened.manifest.pair.items():
        steps = schedule(contract, VOCAB)
        unknown = [ReferenceStep(step, np.zeros((step.rows, VOCAB), np.float32)) for step in steps]
        decoder = MicroDecoder(Micro(noise=2.0 * (role == "draft")), contract)
        known = [replace(entry, logits=row) for entry, row in zip(unknown, logits_of(decoder, unknown), strict=True)]
        save_reference(opened.path(model.reference), known)
    opened = replace(opened, manifest=replace(opened.manifest, files=list_files(tmp_path)))
    write_manifest(tmp_path, opened.manifest)
    before = content(tmp_path)

    lib = Library("tensorrt", FakeTensorRT(device, "10.7.0"))
    monkeypatch.setattr(module, "compiler", lambda engine, options: lib)
    monkeypatch.setattr(module, "find_gpu", lambda: Gpu("Orin", (8, 9), "12.6", 8))
    monkeypatch.setattr(enterprise, "library", lambda name: lib)
    monkeypatch.setattr(enterprise, "CudaDevice", lambda index: device)

    def compile_graph(lib: Library, job: CompileJob, plan: Path, *given: Any) -> None:
        plan.write_bytes(fake_plan(job.graph, job.profiles, "10.7.0"))

    monkeypatch.setattr(module, "compile_graph", compile_graph)
    run = IExecutionContext.execute_async_v3

    def execute(context: IExecutionContext, stream: int) -> bool:
        done = run(context, stream)
        if context.active_optimization_profile == wrong and "rows" in context.engine.name:
            for output in map(context.get_tensor_address, ("logits", "new.0.key")):
                device.driver.enqueue(partial(device.view(output, 4).fill, 0x42))
        return done

    monkeypatch.setattr(IExecutionContext, "execute_async_v3", execute)
    if wrong is None:
        assert plans_of(compile_bundle(opened, "tensorrt", CompileOptions(), Silent()), "tensorrt")
    else:
        with refused(ProofError):
            compile_bundle(opened, "tensorrt", CompileOptions(), Silent())
        assert content(tmp_path) == before
    assert device.driver.live == {}
