"""Bundles with several drafts: built, loaded, and changed by `specexport add-draft`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import specexport
from specexport.atomic import lock
from specexport.bundle import MANIFEST, Bundle
from specexport.editing import replace_manifest
from specexport.editing.replace_manifest import remove_draft
from specexport.errors import EngineError, OutputError, ParameterError, ProofError
from specexport.exporter import additional_drafts
from specexport.exporter.additional_drafts import AddOptions, add_draft
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions, NamedDraft, parse_draft
from specexport.runtime.describe import describe, render
from specexport.runtime.policy.cost_model import COSTS
from specexport.runtime.policy.routes import POLICY
from specexport.runtime.proofs.verify import DEFAULT_PROMPTS, verify_session
from specexport.runtime.proofs.verify import render as render_report
from support.doubles import proofs_of
from support.pair import Notes, Pair
from support.refusals import refused
from support.tiny import LINES, make_tokenizer, save_checkpoint

pytestmark = pytest.mark.slow

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Drafts: one of other weights, one of another tokenizer, one whose positions end early."""
    folder = tmp_path_factory.mktemp("drafts")
    return {
        "small": save_checkpoint(folder / "small", seed=1),  # the target itself, so all that it drafts stands
        "other": save_checkpoint(folder / "other", seed=3, tokenizer=make_tokenizer(272, LINES[:2]), vocab_size=272),
        "short": save_checkpoint(folder / "short", seed=4, max_position_embeddings=32),
    }


@pytest.fixture(scope="module")
def several(pair: Pair, others: dict[str, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of three drafts, the last with another tokenizer. Not to be changed."""
    drafts = [NamedDraft(name, str(path)) for name, path in {"first": pair.draft, **others}.items() if name != "short"]
    options = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache, min_overlap=0.1)
    place = tmp_path_factory.mktemp("several") / "tiny.bundle"
    build(str(pair.target), drafts, place, options)
    return place


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """A bundle of one draft, to be changed."""
    return Path(shutil.copytree(built, tmp_path / "copy.bundle"))


def state(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("given", "name", "source"),
    [
        ("models/demo", "demo", "models/demo"),
        ("models/demo/", "demo", "models/demo/"),
        ("org/SmolLM2-135M", "SmolLM2-135M", "org/SmolLM2-135M"),
        ("org/model:file.Q4 0.gguf", "file.Q4-0", "org/model:file.Q4 0.gguf"),
        ("code=models/demo", "code", "models/demo"),
        ("a/b=c/model", "draft", "a/b=c/model"),
        ("x/" + "long" * 20, "long" * 8, "x/" + "long" * 20),
    ],
)
def test_names_of_drafts(given: str, name: str, source: str) -> None:
    assert parse_draft(given) == NamedDraft(name, source)


@pytest.mark.parametrize(
    ("given", "there", "name", "source"),
    [
        ("lr=3e-4/ckpt", "lr=3e-4/ckpt", "ckpt", "lr=3e-4/ckpt"),
        ("step=100", "step=100", "step-100", "step=100"),
        ("step=100", "100", "step", "100"),  # the whole is no path here
        ("code=lr=3e-4/ckpt", "lr=3e-4/ckpt", "code", "lr=3e-4/ckpt"),
        ("run:5/a:b", "run:5/a:b", "a-b", "run:5/a:b"),
        ("lr=1/q:4.gguf", "lr=1/q:4.gguf", "q-4", "lr=1/q:4.gguf"),
        ("~/lr=1/ckpt", "lr=1/ckpt", "ckpt", "~/lr=1/ckpt"),
    ],
)
def test_what_exists_is_a_path_whatever_its_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, there: str, name: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / there).mkdir(parents=True)
    assert parse_draft(given) == NamedDraft(name, source)


def test_a_bundle_of_several_drafts(several: Path, built: Path) -> None:
    bundle = Bundle.open(several)
    assert bundle.manifest.draft_names == ("first", "small", "other")
    whole = Bundle.open(built).manifest
    assert bundle.manifest.target.graphs == whole.target.graphs
    small, other = bundle.manifest.draft_called("small"), bundle.manifest.draft_called("other")
    assert small.shared_vocabulary is None
    assert other.shared_vocabulary is not None
    assert other.shared_vocabulary.maps.startswith("drafts/other-")
    assert all(proof.passed for proof in proofs_of(bundle.manifest))
    text = render(describe(bundle))
    assert "ngram+small" in text
    assert text.count("the draft has another tokenizer") == 1


def test_every_draft_gives_the_targets_own_text(several: Path) -> None:
    with specexport.load(several) as session:
        plain = session.generate(PROMPT, speculate=False, max_new_tokens=16)
        rates = {}
        for drafter in ("model", "first", "small", "other", "ngram+small", "small", "ngram+other", "model"):
            found = session.generate(PROMPT, drafter=drafter, num_draft_tokens=3, max_new_tokens=16)
            assert found.tokens == plain.tokens, drafter
            rates[drafter] = found.statistics.acceptance_rate
        assert rates["model"] == rates["first"] < 1
        assert rates["small"] == 1 > rates["ngram+small"] > rates["other"]
        assert session.drafts.opened.keys() == {"first", "small", "other"}


def test_verify_proves_every_draft(several: Path) -> None:
    with specexport.load(several) as session:
        report = verify_session(session, None, 8)
    assert report.passed
    assert [proof.role for proof in report.parity] == ["target", "draft first", "draft small", "draft other"]
    assert len(report.equalities) == 3 * DEFAULT_PROMPTS
    assert "draft small on onnxruntime" in render_report(report)
    assert f"of {3 * DEFAULT_PROMPTS} runs ({DEFAULT_PROMPTS} prompts x 3 drafters) equal" in render_report(report)


def test_add_draft_exports_the_draft_alone(copy: Path, others: dict[str, Path], cache: Path) -> None:
    before, notes = state(copy), Notes()
    for name in (POLICY, COSTS):
        (copy / name).write_text("{}")  # of other drafts, so they stay
    report = add_draft(Bundle.open(copy), NamedDraft("small", str(others["small"])), AddOptions(cache=cache), notes)
    assert [label for label, _ in notes.stages if "target" in label] == []
    assert [line for line in report.warnings if "not smaller than the target's" in line]
    after = state(copy)
    assert {name: content for name, content in after.items() if name in before and name != "manifest.json"} == {
        name: content for name, content in before.items() if name != "manifest.json"
    }
    assert {POLICY, COSTS} <= set(after)
    (copy / POLICY).unlink()
    (copy / COSTS).unlink()
    assert Bundle.open(copy) == report.bundle
    with specexport.load(copy) as session:
        plain = session.generate(PROMPT, speculate=False, max_new_tokens=12)
        assert session.generate(PROMPT, drafter="small", max_new_tokens=12).tokens == plain.tokens


def test_add_draft_replaces_one_of_its_name(copy: Path, others: dict[str, Path], cache: Path) -> None:
    options = AddOptions(cache=cache, min_overlap=0.1)
    add_draft(Bundle.open(copy), NamedDraft("x", str(others["small"])), options)
    first = Bundle.open(copy).manifest
    add_draft(Bundle.open(copy), NamedDraft("x", str(others["small"])), options)
    assert Bundle.open(copy).manifest == first  # the same again
    (copy / POLICY).write_text("{}")
    add_draft(Bundle.open(copy), NamedDraft("x", str(others["other"])), options)
    manifest = Bundle.open(copy).manifest
    assert manifest.draft_names == ("draft", "x")
    assert manifest.draft_called("x").shared_vocabulary is not None
    assert len(list((copy / "drafts").iterdir())) == 1
    assert not (copy / POLICY).exists()  # it was made with the one that went
    add_draft(Bundle.open(copy), NamedDraft("draft", str(others["small"])), options)
    manifest = Bundle.open(copy).manifest
    assert manifest.draft_names == ("draft", "x")
    assert manifest.drafts
    assert manifest.drafts[0].model.source == others["small"].name
    assert not list((copy / "graphs").glob("draft*"))
    with specexport.load(copy) as session:
        plain = session.generate(PROMPT, speculate=False, max_new_tokens=12)
        for drafter in ("model", "x"):
            assert session.generate(PROMPT, drafter=drafter, max_new_tokens=12).tokens == plain.tokens


def test_a_bundle_without_a_draft_gets_its_first(
    pair: Pair, others: dict[str, Path], cache: Path, tmp_path: Path
) -> None:
    place = tmp_path / "alone.bundle"
    build(str(pair.target), None, place, BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache))
    add_draft(Bundle.open(place), NamedDraft("small", str(others["small"])), AddOptions(cache=cache))
    assert Bundle.open(place).manifest.draft_names == ("small",)
    with specexport.load(place) as session:
        assert session.generate(PROMPT, num_draft_tokens=3, max_new_tokens=8).statistics.draft_passes > 0


@pytest.mark.parametrize(
    ("module", "place"),
    [(additional_drafts, "export_model"), (additional_drafts, "prove"), (replace_manifest, "write_manifest")],
)
@pytest.mark.parametrize("error", [ProofError("no"), KeyboardInterrupt(), OSError(28, "No space left")])
def test_an_add_that_fails_leaves_the_bundle_as_it_was(
    module: ModuleType,
    place: str,
    error: BaseException,
    copy: Path,
    others: dict[str, Path],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = state(copy)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, place, fail)
    with pytest.raises((ProofError, KeyboardInterrupt, OutputError)):
        add_draft(Bundle.open(copy), NamedDraft("small", str(others["small"])), AddOptions(cache=cache))
    assert state(copy) == before


def test_a_host_without_the_kernels_is_told_what_to_install(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("specexport_kernels")
    monkeypatch.setitem(sys.modules, "specexport_kernels", None)
    with refused(EngineError, "specexport-kernels", "not installed", "pip install", code="engine_unavailable"):
        add_draft(Bundle.open(bundle), NamedDraft("small", "unread"))


def test_of_two_that_add_the_same_the_second_is_refused_and_harms_nothing(
    copy: Path, others: dict[str, Path], cache: Path
) -> None:
    before, named = Bundle.open(copy), NamedDraft("small", str(others["small"]))
    add_draft(before, named, AddOptions(cache=cache))
    after = state(copy)
    with refused(OutputError, "meantime", code="changed_meanwhile"):
        add_draft(before, named, AddOptions(cache=cache))
    assert state(copy) == after
    with lock_of(copy), refused(OutputError, "being", code="changed_meanwhile"):
        add_draft(Bundle.open(copy), named, AddOptions(cache=cache))
    assert state(copy) == after
    Bundle.open(copy)


@contextmanager
def lock_of(folder: Path) -> Iterator[None]:
    file = os.open(folder, os.O_RDONLY)
    lock(file)
    try:
        yield
    finally:
        os.close(file)


def test_a_draft_that_is_removed_leaves_nothing(copy: Path, others: dict[str, Path], cache: Path) -> None:
    before = state(copy)
    add_draft(Bundle.open(copy), NamedDraft("small", str(others["small"])), AddOptions(cache=cache))
    (copy / POLICY).write_text("{}")
    for name in ("draft", "model", "other"):
        with refused(ParameterError, "small", field="draft"):
            remove_draft(Bundle.open(copy), name)
    assert remove_draft(Bundle.open(copy), "small") == Bundle.open(copy)
    after = state(copy)
    assert json.loads(after.pop(MANIFEST)) == json.loads(before.pop(MANIFEST))
    assert after == before


def test_drafts_that_cannot_be_added(copy: Path, others: dict[str, Path], cache: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(copy)

    def add(bundle: Bundle, name: str, source: str, **options: object) -> None:
        with refused(ParameterError, field=("draft", "draft_precision")):
            add_draft(bundle, NamedDraft(name, str(others[source])), AddOptions(cache=cache, **options))  # type: ignore[arg-type]

    add(bundle, "short", "short")
    add(bundle, "small", "small", precision="fp16")
    add(Bundle(copy, replace(bundle.manifest, engines=("tensorrt",))), "small", "small")
    add(Bundle(copy, replace(bundle.manifest, engines=("tensorrt", "onnxruntime"))), "draft", "small")


def test_builds_that_cannot_have_several() -> None:
    draft, other = NamedDraft("draft", "a"), NamedDraft("b", "x")
    with refused(ParameterError, field="draft"):
        BuildOptions().check((draft, draft), "out")
    with refused(ParameterError, field="draft"):
        BuildOptions(engines=("tensorrt",), precision="fp16").check((draft, other), "out")
