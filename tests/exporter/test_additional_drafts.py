"""Bundles with several drafts: built, loaded, and built again with others."""

from __future__ import annotations

from pathlib import Path

import pytest
import specexport
from specexport.bundle import Bundle
from specexport.errors import ParameterError
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions, NamedDraft, parse_draft
from specexport.runtime.describe import describe, render
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
    """Drafts: one of other weights, one of another tokenizer."""
    folder = tmp_path_factory.mktemp("drafts")
    return {
        "small": save_checkpoint(folder / "small", seed=1),  # the target itself, so all that it drafts stands
        "other": save_checkpoint(folder / "other", seed=3, tokenizer=make_tokenizer(272, LINES[:2]), vocab_size=272),
    }


@pytest.fixture(scope="module")
def several(pair: Pair, others: dict[str, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of three drafts, the last with another tokenizer. Not to be changed."""
    drafts = [NamedDraft(name, str(path)) for name, path in {"first": pair.draft, **others}.items()]
    options = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache, min_overlap=0.1)
    place = tmp_path_factory.mktemp("several") / "tiny.bundle"
    build(str(pair.target), drafts, place, options)
    return place


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
            session.reset()
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


def test_a_bundle_with_other_drafts_exports_only_what_is_new(pair: Pair, tmp_path: Path) -> None:
    """As `docs/drafts.md` says to change the drafts of a bundle: none, more, fewer, in another order."""
    new = save_checkpoint(tmp_path / "new", seed=5)
    options = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=tmp_path / "cache", force=True)
    place, drafts = tmp_path / "b.bundle", {"first": pair.draft, "new": new}
    for names, exported in (
        (("first",), ["export target", "export draft"]),
        (("first", "new"), ["export draft new"]),
        (("new", "first"), []),
        (("new",), []),
        ((), []),
    ):
        notes = Notes()
        build(str(pair.target), [NamedDraft(name, str(drafts[name])) for name in names], place, options, notes)
        assert [label for label, _ in notes.stages if label.startswith("export")] == exported
        assert Bundle.open(place).manifest.draft_names == names
    assert not (place / "drafts").exists()


def test_builds_that_cannot_have_several() -> None:
    draft, other = NamedDraft("draft", "a"), NamedDraft("b", "x")
    with refused(ParameterError, field="draft"):
        BuildOptions().check((draft, draft), "out")
    with refused(ParameterError, field="draft"):
        BuildOptions(engines=("tensorrt",), precision="fp16").check((draft, other), "out")
