"""Compares DFlash and DSpark drafts as they are read here with `speculators`' own, on tiny random ones of every form.

pip install speculators==0.9.0                     # into an environment of its own: it pins an older transformers
python scripts/block_reference.py                  # one block of each form, in fp32, each slot after a true token
python scripts/block_reference.py --record FILE    # also what tests/exporter/hidden_drafts compares with
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from block_steps import ANCHOR, computed
from safetensors.torch import load_file
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from speculators.models.dflash import DFlashDraftModel  # type: ignore[import-not-found]  # its own environment
from speculators.models.dflash import core as dflash
from speculators.models.dspark.core import DSparkDraftModel  # type: ignore[import-not-found]
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

WIDTH, VOCAB, KEPT, ROWS, BLOCK, RANK, MASK = 16, 288, 24, 12, 4, 6, 5
TAPS = [2, 4, 5]
SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    tie_word_embeddings=False,
)
SLIDING = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=3, use_sliding_window=True)


def forms() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Names, classes, options of the class, and of the layers."""
    yield "dflash", DFlashDraftModel, {}, {}
    yield "dflash, windows", DFlashDraftModel, {}, SLIDING
    yield "dflash, windows without order", DFlashDraftModel, dict(sliding_window_non_causal=True), SLIDING
    yield "dspark", DSparkDraftModel, {}, {}
    yield "dspark, gated", DSparkDraftModel, dict(markov_head_type="gated"), {}
    yield "dspark, confidence alone", DSparkDraftModel, dict(markov_rank=0, confidence_head_with_markov=False), {}
    yield "dspark, without confidence", DSparkDraftModel, dict(enable_confidence_head=False), {}
    yield "dspark, after the anchor", DSparkDraftModel, dict(sample_from_anchor=False), {}


def told_by(theirs: Any, aux: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """The library's logits `[slots, m]` and confidences `[slots]` of the block at the anchor."""
    dflash.select_anchors = lambda mask, count, size: (torch.tensor([ANCHOR]), torch.tensor([True]))
    with torch.no_grad():
        hidden, logits, *_ = theirs._backbone_forward(
            aux, ids, torch.ones(1, ROWS), aux[..., :WIDTH], torch.zeros_like(ids), max_anchors=1
        )
        first = 0 if theirs.config.sample_from_anchor else 1
        before = ids[:, ANCHOR - first : ANCHOR - first + BLOCK]
        confidence, read = None, hidden
        if getattr(theirs, "markov_head", None) is not None:
            embedded = theirs.markov_head.prev_embeddings(before)
            logits = logits + theirs.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
            if theirs.config.confidence_head_with_markov:
                read = torch.cat([hidden, embedded], -1)
        if getattr(theirs, "confidence_head", None) is not None:
            confidence = theirs.confidence_head(read)[0, first:]
    return logits[0, first:], confidence


def run(record: Path | None = None) -> float:
    """The largest difference of a number; record: where to write what was compared."""
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    target_folder, weights = folder / "target", dict[str, Tensor]()
    LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=8)).save_pretrained(target_folder)
    kept = torch.randperm(VOCAB)[:KEPT].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[kept] = True
    aux, ids = torch.randn(1, ROWS, len(TAPS) * WIDTH), torch.randint(0, VOCAB, (1, ROWS))
    arrays: dict[str, Any] = dict(aux=aux.numpy(), ids=ids.numpy())
    described, worst = [], 0.0
    for place, (name, kind, options, layers) in enumerate(forms()):
        theirs = kind.from_training_args(
            Qwen3Config(**SIZES, num_hidden_layers=2, **layers),
            t2d=t2d,
            d2t=kept - torch.arange(KEPT),
            draft_vocab_size=KEPT,
            block_size=BLOCK,
            target_layer_ids=TAPS,
            mask_token_id=MASK,
            verifier_name_or_path=str(target_folder),
            draft_attn_impl="eager",
            **dict(markov_rank=RANK) | options,
        ).eval()
        with torch.no_grad():
            for key, parameter in theirs.named_parameters():
                if f"{key} {parameter.shape}" not in weights:  # the forms share their weights
                    base = 1.0 if parameter.ndim == 1 and "bias" not in key else 0.0
                    random = (base + 0.3 * torch.randn(parameter.shape)).bfloat16().float()  # packs well
                    weights[f"{key} {parameter.shape}"] = random
                parameter.copy_(weights[f"{key} {parameter.shape}"])
        logits, confidence = told_by(theirs, aux, ids)
        theirs.save_pretrained(folder / name)
        saved = load_file(folder / name / "model.safetensors")
        model = find_draft(str(folder / name), find_checkpoint(str(target_folder))).load("fp32")
        # The target's embedding is read on both sides.
        theirs.load_verifier_weights()
        logits, confidence = told_by(theirs, aux, ids)
        ours = computed(model, aux, ids)
        assert (ours[1] is None) == (confidence is None)
        difference = float((ours[0] - logits).abs().max())
        if confidence is not None and ours[1] is not None:
            difference = max(difference, float((ours[1] - confidence).abs().max()))
            arrays[f"confidence {place}"] = confidence.numpy()
        worst = max(worst, difference)
        print(f"{name:40s} largest difference {difference:.1e} of {float(logits.std()):.2f}")
        config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        config["speculators_config"]["verifier"]["name_or_path"] = "tiny/target"
        tensors = {key: f"{key} {value.shape}" for key, value in saved.items()}
        described.append(dict(name=name, config=config, tensors=tensors))
        arrays[f"logits {place}"] = logits.numpy()
        arrays |= {f"weight {key} {value.shape}": value.numpy() for key, value in saved.items()}
        arrays["embedding"] = theirs.embed_tokens.weight.detach().numpy()
    if record is not None:
        np.savez_compressed(record, forms=np.frombuffer(json.dumps(described).encode(), np.uint8), **arrays)
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    assert run(parser.parse_args().record) < 1e-5
