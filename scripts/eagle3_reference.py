"""Compares EAGLE-3 drafts as they are read here with `speculators`' own, on tiny random ones of every form.

    pip install speculators==0.9.0                     # into an environment of its own: it pins an older transformers
    python scripts/eagle3_reference.py                 # three draft steps of each form, in fp32
    python scripts/eagle3_reference.py --record FILE   # also what tests/exporter/hidden_drafts compares with

Row i of step j is drafted by the library from true tokens and its own feedback, j steps after the true row i.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from eagle3_steps import STEPS, drafted
from safetensors.torch import load_file
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.hidden_drafts.fit import Said
from speculators.models.eagle3 import Eagle3DraftModel  # type: ignore[import-not-found]  # its own environment
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config

WIDTH, VOCAB, KEPT, ROWS = 16, 288, 24, 7
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


def forms() -> Iterator[tuple[str, type[LlamaConfig] | type[Qwen3Config], int, dict[str, bool]]]:
    """Names, layers and flags: every combination for one Llama layer, and all at once for others."""
    for residual, norm, output in itertools.product((False, True), ("", "norm_before_fc", "fc_norm"), (False, True)):
        flags = dict(norm_before_residual=residual, norm_output=output, norm_before_fc=False, fc_norm=False)
        flags |= {norm: True} if norm else {}
        yield "+".join(key for key, value in flags.items() if value) or "plain", LlamaConfig, 1, flags
    flags = dict(norm_before_residual=True, norm_output=True, norm_before_fc=False, fc_norm=True)
    yield "two layers", LlamaConfig, 2, flags
    yield "qwen3", Qwen3Config, 1, flags


def told_by(theirs: Any, aux: Tensor, ids: Tensor) -> list[Tensor]:
    """The library's logits `[ROWS, m]` of each step; the last j rows of step j have no true token."""
    heard: list[Tensor] = []
    hook = theirs.lm_head.register_forward_hook(lambda module, inputs, output: heard.append(output[0]))
    with torch.no_grad():
        theirs(hidden_states=aux, input_ids=ids, document_ids=torch.zeros_like(ids), ttt_steps=STEPS)
    hook.remove()
    return heard


def run(record: Path | None = None) -> float:
    """The largest difference of a logit; record: where to write what was compared."""

    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    target_folder, weights = folder / "target", dict[str, Tensor]()
    LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=8)).save_pretrained(target_folder)
    kept = torch.randperm(VOCAB)[:KEPT].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[kept] = True
    aux, ids = torch.randn(1, ROWS, len(TAPS) * WIDTH), torch.randint(0, VOCAB, (1, ROWS))
    arrays: dict[str, Any] = dict(aux=aux.numpy(), ids=ids.numpy())
    described, logits, worst = [], [], 0.0
    for name, kind, layers, flags in forms():
        theirs = Eagle3DraftModel.from_training_args(
            kind(**SIZES, num_hidden_layers=layers),
            t2d=t2d,
            d2t=kept - torch.arange(KEPT),
            draft_vocab_size=KEPT,
            target_layer_ids=TAPS,
            ttt_steps=STEPS,
            verifier_name_or_path=str(target_folder),
            draft_attn_impl="eager",
            **flags,
        ).eval()
        with torch.no_grad():
            for key, parameter in theirs.named_parameters():
                if key not in weights:  # the forms share their weights
                    base = 1.0 if parameter.ndim == 1 else 0.0
                    weights[key] = (base + 0.3 * torch.randn(parameter.shape)).bfloat16().float()  # packs well
                parameter.copy_(weights[key])
        heard = told_by(theirs, aux, ids)
        theirs.save_pretrained(folder / name)
        difference = compare(folder / name, target_folder, aux, ids, heard)
        worst = max(worst, difference)
        print(f"{name:60s} largest difference {difference:.1e} of {float(heard[0].std()):.2f}")
        config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        config["speculators_config"]["verifier"]["name_or_path"] = "tiny/target"
        saved = load_file(folder / name / "model.safetensors")
        described.append(dict(name=name, config=config, tensors=sorted(saved)))
        logits.append(torch.stack(heard).numpy())
        arrays |= {f"weight {key}": value.numpy() for key, value in saved.items()}
    if record is not None:
        text = np.frombuffer(json.dumps(described).encode(), np.uint8)
        np.savez_compressed(record, forms=text, logits=np.stack(logits), **arrays)
    return worst


def compare(folder: Path, target_folder: Path, aux: Tensor, ids: Tensor, heard: list[Tensor]) -> float:
    target = find_checkpoint(str(target_folder))
    model = find_draft(str(folder), target, Said()).load("fp32")

    def forward(tokens: Tensor, rows: int, feedback: Tensor | None, cache: DynamicCache) -> Any:
        hidden = model.fuse(aux[:, :rows]) if feedback is None else feedback
        return model(tokens, hidden, past_key_values=cache)

    with torch.no_grad():
        ours = drafted(forward, ids)
    pairs = zip(ours, heard, strict=True)
    return max(float((mine - theirs[: len(mine)]).abs().max()) for mine, theirs in pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    assert run(parser.parse_args().record) < 1e-5
