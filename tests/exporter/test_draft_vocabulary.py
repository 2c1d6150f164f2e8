from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specexport
import torch
from specexport.bundle import Bundle
from specexport.editing.progress import Silent, Timed
from specexport.errors import ParameterError, ProofError
from specexport.exporter.build import BuildReport, build
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.kept_tokens import KeptTokens
from specexport.exporter.export_model import ModelExport, export_model
from specexport.exporter.options import BuildContext, BuildOptions
from specexport.exporter.proving.prove import prove
from specexport.exporter.target_answers import ANSWER_TOKENS, own_answers
from specexport.runtime.describe import describe, render
from specexport.runtime.proofs.parity import load_reference, max_error
from specexport.runtime.sampling.parameters import SamplingParameters
from support.doubles import proofs_of
from support.pair import Pair
from support.refusals import refused
from support.tiny import CONTRACT, VOCAB

KEPT = 270
Build = Callable[..., BuildReport]


@pytest.fixture
def run(pair: Pair, cache: Path, tmp_path: Path) -> Build:
    def run(draft: Path | None = pair.draft, **options: Any) -> BuildReport:
        given = dict(max_seq_len=64, prompt_chunk=16, cache=cache, draft_vocabulary=str(KEPT)) | options
        return build(str(pair.target), draft and str(draft), tmp_path / "cut.bundle", BuildOptions(**given))

    return run


@pytest.fixture
def context(tmp_path: Path) -> BuildContext:
    return BuildContext(CONTRACT, tmp_path / "work", tmp_path / "cache", Timed(Silent()))


@pytest.fixture(scope="module")
def cut(pair: Pair, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose draft proposes KEPT tokens."""
    output = tmp_path_factory.mktemp("cut") / "cut.bundle"
    options = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache, draft_vocabulary=str(KEPT))
    build(str(pair.target), str(pair.draft), output, options)
    return output


def test_the_bundle_says_what_its_draft_can_propose(cut: Path) -> None:
    bundle = Bundle.open(cut)
    told = bundle.manifest.drafts[0].reduced_vocabulary
    assert told is not None
    assert (told.kept_tokens, told.all_tokens, told.own_texts) == (KEPT, VOCAB, False)
    assert 0.5 < told.coverage <= 1
    assert 0 <= told.acceptance <= 1
    assert told.held_out_tokens < told.counted_tokens
    assert told.summary in render(describe(bundle))


def test_the_draft_has_no_mass_elsewhere_and_the_checkpoints_logits_on_what_it_keeps(cut: Path, pair: Pair) -> None:
    session = specexport.load(cut)
    tokens = session.encode("def add(a, b):")
    assert session.engine.draft is not None
    found = session.engine.draft.decoder.step(tokens[:3], 0)
    model = find_checkpoint(str(pair.draft)).load("fp32")
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([tokens[:3]])).logits[0].numpy()
    kept = found > -np.inf
    assert kept.sum(-1).tolist() == [KEPT] * 3
    assert np.allclose(found[kept], wanted[kept], atol=1e-4)
    assert kept[:, list(find_checkpoint(str(pair.target)).stop_token_ids)].all()


def test_all_dialects_are_proved_and_a_wrong_map_is_found(cut: Path) -> None:
    bundle = Bundle.open(cut)
    proofs = [proof for proof in proofs_of(bundle.manifest) if proof.role == "draft"]
    assert {proof.dialect for proof in proofs} == {"ort"}
    assert all(proof.max_error < 1e-4 for proof in proofs)
    reference = load_reference(cut / "reference/draft.npz")
    session = specexport.load(cut)
    assert session.engine.draft is not None
    assert max_error(session.engine.draft.decoder, reference) < 1e-4
    for entry in reference:
        entry.logits[:] = np.roll(entry.logits, 1, -1)
    assert max_error(session.engine.draft.decoder, reference) == np.inf


def test_the_output_is_the_targets_own(cut: Path) -> None:
    session = specexport.load(cut)
    for sampling in (SamplingParameters(), SamplingParameters(temperature=1.0, seed=3, verification="token")):
        plain = session.generate("def add(a, b):", sampling, max_new_tokens=24, num_draft_tokens=0)
        drafted = session.generate("def add(a, b):", sampling, max_new_tokens=24, num_draft_tokens=4)
        assert drafted.statistics.drafted
        if sampling.greedy:
            assert drafted.tokens == plain.tokens


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantized_drafts_are_cut_too(precision: str, run: Build) -> None:
    report = run(precision=precision)
    draft = report.bundle.manifest.drafts[0].model
    assert draft is not None
    assert draft.layer_proofs
    assert report.bundle.manifest.drafts[0].reduced_vocabulary is not None


def test_a_target_continues_its_prompts_and_stops(pair: Pair) -> None:
    model = find_checkpoint(str(pair.target)).load("fp32")
    prompts = [[5, 6, 7], [8], [9, 10]]
    answers = own_answers(model, prompts, (1,), lambda step: None)
    assert [list(prompt) for prompt, _ in answers] == prompts
    for prompt, answer in answers:  # one batch, greedy: what is padded in front changes nothing
        tokens = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            likeliest = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].argmax(-1)
        assert likeliest.tolist() == list(answer)
        assert len(answer) == ANSWER_TOKENS or answer[-1] == 1
        assert 1 not in answer[:-1]


@pytest.mark.parametrize("given", ["100", "289"])
def test_too_few_and_too_many_tokens(given: str, run: Build) -> None:
    with refused(ParameterError, "--draft-vocabulary", field="draft_vocabulary"):
        run(draft_vocabulary=given)


def test_a_graph_that_proposes_others_is_refused(
    pair: Pair, context: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: KeptTokens, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([logits, logits[..., : self.size - logits.shape[-1]]], -1)

    monkeypatch.setattr(KeptTokens, "spread", wrong)
    draft = replace(find_checkpoint(str(pair.draft)), kept=tuple(range(KEPT)))
    for folder in ("graphs", "reference"):
        (context.staging_dir / folder).mkdir(parents=True)
    spec = export_model(ModelExport(draft, "draft", ("ort",)), context)
    with pytest.raises(ProofError):
        prove(context.staging_dir, "draft", spec, context.contract, ("onnxruntime",), lambda step: None)
