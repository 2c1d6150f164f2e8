"""Layers that keep states: graphs against the Hugging Face model, late commit against one row at a time, by the bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport import load
from specexport.engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from specexport.errors import UnsupportedModelError
from specexport.exporter.build import build
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.options import BuildOptions
from specexport.exporter.tracing.trace import probe_cache, trace
from specexport.runtime.proofs.equality import check_equality
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE
from support.hybrids import KINDS, MORE, OPTIONS, SHARED, decoder, save_hybrid
from support.refusals import refused
from support.tiny import CONTRACT, VOCAB, Exported, export_cached, save_checkpoint

TOL = LOGIT_TOLERANCE["fp32"]
Hybrids = Callable[[str], Exported]
# A number for each row of a state, by which it decays, takes ONNX Runtime's operator.
ORT_ALONE = ("decay by row of the state", "decay by row of the state, experts")


@pytest.fixture(scope="session")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> Hybrids:
    made: dict[str, Exported] = {}

    def exported(kind: str) -> Exported:
        if kind not in made:
            folder = tmp_path_factory.mktemp("hybrid")
            dialects: tuple[Dialect, ...] = ("ort",) if kind in ORT_ALONE else ("onnx", "ort")
            made[kind] = export_cached(save_hybrid(folder / "checkpoint", kind), folder / "graphs", dialects)
        return made[kind]

    return exported


ALL = [*KINDS, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in MORE | OPTIONS | SHARED)]


@pytest.mark.parametrize("kind", ALL)
def test_graphs_give_the_logits_of_hugging_face(kind: str, hybrids: Hybrids) -> None:
    exported = hybrids(kind)
    assert exported.spec.has_states
    for dialect in exported.spec.graphs:
        assert exported.error(dialect) <= TOL / 10  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps_open", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_late_commit_is_one_row_at_a_time_bit_for_bit(kind: str, keeps_open: bool, hybrids: Hybrids) -> None:
    """Drafts that are rejected at every place leave the same logits as if they had never been."""
    draw, widest = random.Random(0), CONTRACT.widest_step
    ours, plain = decoder(hybrids(kind), keeps_open), decoder(hybrids(kind))
    for _ in range(4):
        tokens = [draw.randrange(VOCAB) for _ in range(draw.randint(2, 20))]
        for part in (ours, plain):
            part.feed(tokens[:-1], 0)
        while len(tokens) + 2 * widest <= CONTRACT.capacity:
            position, accepted = len(tokens) - 1, draw.randrange(widest)
            behind = [draw.randrange(VOCAB) for _ in range(widest)]
            found = ours.step([tokens[-1], *behind[:-1]], position).copy()
            ours.overwrite_rows(position + accepted + 1, 1e4)
            for row in range(accepted + 1):  # of the same width: kernels add in another order for another
                padding = [draw.randrange(VOCAB) for _ in range(widest - 1)]
                assert (plain.step([tokens[-1], *padding], position + row)[0] == found[row]).all()
                tokens.append(behind[row])


@pytest.mark.parametrize("keeps_open", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_standard_operators_over_a_text_with_rejected_drafts(kind: str, keeps_open: bool, hybrids: Hybrids) -> None:
    """Sums come in another order than in ONNX Runtime's operators; what that leaves in a state does not grow."""
    draw, widest = random.Random(0), CONTRACT.widest_step
    exported = hybrids(kind)
    path = exported.folder / exported.spec.graphs["onnx"]
    ours = OrtDecoder(
        path, exported.spec, exported.contract, dialect="onnx", options=DecoderOptions(keeps_open=keeps_open)
    )
    plain, errors = decoder(exported), []
    for _ in range(4):
        tokens = [draw.randrange(VOCAB) for _ in range(draw.randint(2, 20))]
        for part in (ours, plain):
            part.feed(tokens[:-1], 0)
        while len(tokens) + widest < CONTRACT.capacity:
            position, width = len(tokens) - 1, draw.randint(1, widest)
            behind, accepted = [draw.randrange(VOCAB) for _ in range(width)], draw.randrange(width)
            found = ours.step([tokens[-1], *behind[:-1]], position).copy()
            # A number, which shows wherever it is let in: attention here gives masked rows weight 0, and NaN stays.
            ours.overwrite_rows(position + accepted + 1, 1e4)
            for row in range(accepted + 1):
                expected = plain.step([tokens[-1]], position + row)[0]
                errors.append(float(np.abs(expected - found[row]).max() / expected.std()))
                tokens.append(behind[row])
            ours_is_sound = ours.resumable(len(tokens) - 1) == len(tokens) - 1
            assert ours_is_sound
    assert np.max(errors) <= TOL / 10  # max() would leave NaN out


def test_drafted_rows_are_rolled_back_over_several_passes(hybrids: Hybrids) -> None:
    """A round of a draft: two tokens, then one a pass; the next begins behind any of them."""
    ours, plain = decoder(hybrids("delta rule"), keeps_open=True), decoder(hybrids("delta rule"))
    draw, k = random.Random(1), CONTRACT.max_draft_tokens
    tokens = [draw.randrange(VOCAB) for _ in range(10)]
    ours.feed(tokens[:-2], 0)
    for accepted in [*range(k + 1), *range(k, -1, -1)]:
        guesses, position = [draw.randrange(VOCAB) for _ in range(k)], len(tokens) - 2
        found = [ours.step(tokens[-2:], position)[-1].copy()]
        found += [ours.step([guess], position + 2 + place)[-1].copy() for place, guess in enumerate(guesses[:-1])]
        plain.feed([*tokens[:-2]], 0)
        again = [plain.step(tokens[-2:], position)[-1].copy()]
        again += [plain.step([guess], position + 2 + place)[-1].copy() for place, guess in enumerate(guesses[:-1])]
        assert np.allclose(found, again, atol=1e-5)  # prompts of another width before
        tokens += [*guesses[:accepted], draw.randrange(VOCAB)]
        ours.overwrite_rows(position + 2 + min(accepted, k - 1), 1e4)
        if accepted == k:  # its last token's row is missing
            assert ours.resumable(len(tokens) - 2) == len(tokens) - 2


@pytest.mark.parametrize("kind", ORT_ALONE)
def test_a_kind_of_state_without_a_standard_form(kind: str, tmp_path: Path) -> None:
    model = find_checkpoint(str(save_hybrid(tmp_path, kind))).load("fp32")
    with refused(UnsupportedModelError, "--engine", "KimiLinearForCausalLM"):
        trace(model, probe_cache(model), "onnx", CONTRACT)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16"])
def test_states_in_half_precision(precision: Any, tmp_path: Path) -> None:
    contract = replace(CONTRACT, precision=precision)
    exported = export_cached(
        save_hybrid(tmp_path / "checkpoint", "delta rule"), tmp_path / "graphs", ("onnx", "ort"), contract=contract
    )
    assert exported.error("ort") <= LOGIT_TOLERANCE["fp16"]
    assert exported.error("onnx") <= LOGIT_TOLERANCE["fp16"]
    dtypes = {state.part: past.dtype for _, state, past, _ in exported.decoder("ort")._states._memory}  # type: ignore[union-attr]
    assert dtypes == {"window": np.float16, "state": np.float32, "rows": np.float32}


@pytest.mark.slow
def test_a_build_of_a_hybrid(tmp_path: Path) -> None:
    target = save_hybrid(tmp_path / "target", "scan")
    options = BuildOptions(max_seq_len=64, prompt_chunk=16)
    bundle = build(str(target), str(save_checkpoint(tmp_path / "draft")), tmp_path / "out.bundle", options).bundle
    assert bundle.manifest.target.layers[0].num_kv_heads == 0
    with load(bundle.root) as session:
        assert check_equality(session, [3, 4, 5], 20).passed
    with load(bundle.root, policy=False) as session:
        session.prepare()
