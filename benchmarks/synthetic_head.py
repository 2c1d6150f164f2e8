"""What a draft that reads hidden states costs and gives over a large target: random weights, acceptance drawn by lot.

    python benchmarks/synthetic_head.py build OUT; python benchmarks/synthetic_head.py measure OUT

The target has a Llama's layers, 1.27 G parameters, and as many tokens as Llama 3. The EAGLE-3 head has one layer of the
target's width and proposes 32 000 tokens; a pass of it reads 5.1 % of the weights that one of the target reads, 5.0 %
with Llama-3.1-8B. Both are rounded to int8 without calibration and proofs. Draft passes run as they are, and what they
propose is replaced by the target's own tokens, or wrong ones: right up to position 1, 2, 3 in ACCEPTED of all rounds.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import specexport
from hardware import describe_hardware
from specexport.runtime.drafting.model_draft import HiddenDraft

TOKENIZER, ACCEPTED = Path(__file__).parent.parent / "examples/demo_pair/target", (0.75, 0.6, 0.5)
ROUNDS, REPEATS, K, CAPACITY, CHUNK = 20, 10, len(ACCEPTED), 1024, 256
LAYERS, WIDTH, VOCAB, KEPT = 52, 1280, 128256, 32000
SIZES: dict[str, Any] = dict(hidden_size=WIDTH, intermediate_size=4480, num_attention_heads=20, num_key_value_heads=5)
SIZES |= dict(head_dim=64, vocab_size=VOCAB, max_position_embeddings=CAPACITY, model_type="llama")


def save(folder: Path) -> None:
    """Write folder/target and folder/head, the latter in speculators' format."""
    import torch
    from safetensors.torch import save_file
    from specexport.exporter.hidden_drafts.eagle3 import Eagle3Draft, Eagle3Form
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    config = LlamaConfig(**SIZES, num_hidden_layers=LAYERS, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "target")
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder / "target")
    form = Eagle3Form((2, LAYERS // 2, LAYERS - 3), WIDTH, KEPT)
    tensors = Eagle3Draft(LlamaConfig(**SIZES, num_hidden_layers=1), form).bfloat16().state_dict()
    del tensors["embed_tokens.weight"]  # the target's
    tensors["d2t"] = torch.arange(KEPT) * (VOCAB // KEPT - 1)
    (folder / "head").mkdir()
    save_file(tensors, folder / "head/model.safetensors")
    said = dict(architectures=["Eagle3DraftModel"], speculators_model_type="eagle3", draft_vocab_size=KEPT)
    said |= dict(transformer_layer_config=SIZES | dict(num_hidden_layers=1, rms_norm_eps=1e-6, rope_theta=1e4))
    (folder / "head/config.json").write_text(json.dumps(said), encoding="utf-8")


def build(folder: Path) -> None:
    from specexport.bundle import LayerProof, Proof
    from specexport.exporter import build as pipeline
    from specexport.exporter import export_model
    from specexport.exporter.options import BuildOptions
    from specexport.exporter.recipe_choice import Chosen
    from specexport.exporter.weights.layers import linear_layers
    from specexport.exporter.weights.recipe import LARGEST_LIMIT, Recipe, WeightRecipe

    def to_nearest(quantizing: Any, checkpoint: Any, model: Any, *_: Any) -> Any:
        names = {layer.weight for layer in linear_layers(model)} - {*getattr(model, "fusing", ())}
        return Chosen(Recipe(dict.fromkeys(names, WeightRecipe("int8", limit=LARGEST_LIMIT))), None, ())

    def unproved(folder: Path, role: Any, spec: Any, *_: Any) -> Any:
        return replace(spec, proofs=(Proof("none", "kernels", role, 0, 0, 0.0, 0.0),))

    none = LayerProof("kernels", 0, 0.0, False, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0)
    skipped = dict(record_reference=lambda *_: [], continued_logits=lambda *_: [], prove_layers=lambda *_: none)
    options = BuildOptions(CAPACITY, K, prompt_chunk=CHUNK, precision="int8", cache=folder / "cache")
    with patch.multiple(export_model, choose_recipe=to_nearest, **skipped), patch.object(pipeline, "prove", unproved):
        for name, head in (("plain", None), ("head", str(folder / "head"))):
            pipeline.build(str(folder / "target"), head, folder / f"{name}.bundle", options)


def measure_passes(plain: Any, session: Any, tokens: list[int], repeats: int) -> dict[str, list[float]]:
    """Seconds of the passes of a round after a context of a chunk, in their order, and of those over the prompt."""
    draft, target, times = session.drafts.context.draft, session.engine.target, defaultdict(list)

    def timed(name: str, run: Callable[..., Any], *arguments: Any) -> None:
        start = perf_counter()
        run(*arguments)
        times[name].append(perf_counter() - start)

    def read(position: int, rows: int) -> None:
        draft.take(tokens, position, session.engine.taps()[:rows])
        draft.first(tokens[: CHUNK + rows + 1], K + 1)[-1].argmax() if position else draft.catch_up(tokens, rows)

    for number in range(repeats):
        decoders = [("without taps", plain.engine.target), ("with taps", target)][:: 1 if number % 2 else -1]
        if number % 16 == 0:
            for name, decoder in decoders:
                timed(f"prompt {name}", decoder.feed, tokens[:CHUNK], 0)
            draft.keep(0)
            timed("prompt, draft", read, 0, CHUNK)
        for name, decoder in decoders:
            timed(f"one row {name}", decoder.step, tokens[CHUNK : CHUNK + 1], CHUNK)
        timed(f"{K + 1} rows with taps", target.step, tokens[CHUNK : CHUNK + K + 1], CHUNK)
        draft.keep(CHUNK)
        rows = number % (K + 1) + 1
        timed(f"draft, {rows} rows", read, CHUNK, rows)
        for row in range(CHUNK + rows, CHUNK + rows + K - 1):
            timed("draft token", lambda row: draft.next(tokens[row], row)[-1].argmax(), row)
    return times


def measure_rounds(plain: Any, session: Any, prompt: list[int], repeats: int) -> Iterator[float]:
    """Speedups over plain decoding without taps, of ROUNDS rounds each."""
    deck = [count for count, share in enumerate(-np.diff([1.0, *ACCEPTED, 0.0])) for _ in range(round(ROUNDS * share))]
    asked: dict[str, Any] = dict(max_new_tokens=ROUNDS + sum(deck), stop_token_ids=())
    known = (*prompt, *plain.generate(prompt, speculate=False, **asked).tokens)
    random, drafted = np.random.default_rng(0), HiddenDraft.one_by_one

    def by_lot(self: HiddenDraft, tokens: Sequence[int], plan: Any) -> Iterator[int]:
        count = next(right)
        for index, _ in enumerate(drafted(self, tokens, plan)):
            yield (known[len(tokens) + index] + (index >= count)) % VOCAB

    def seconds(session: Any, **options: Any) -> float:
        made = session.generate(prompt, **asked, **options)
        assert (*prompt, *made.tokens) == known
        return float(made.statistics.total_seconds - made.statistics.setup_seconds - made.statistics.prefill_seconds)

    HiddenDraft.one_by_one = by_lot  # type: ignore[method-assign]
    for _ in range(repeats):
        right = iter([*random.permutation(deck[:-1]).tolist(), deck[-1]])  # the last drafts all, as the others do
        yield seconds(plain, speculate=False) / seconds(session, num_draft_tokens=K)


def measure(folder: Path) -> None:
    plain, session = (specexport.load(folder / f"{name}.bundle", policy=False) for name in ("plain", "head"))
    tokens = np.random.default_rng(1).integers(3, VOCAB, CHUNK + 2 * K).tolist()
    times = [measure_passes(plain, session, tokens, count) for count in (4, 8 * REPEATS)][1]
    speedups = [*measure_rounds(plain, session, tokens[:CHUNK], REPEATS + 1)][1:]
    shown, base = (0.5, 0.1, 0.9), np.median(times["one row without taps"])
    print(f"{describe_hardware()}; median, 10th and 90th percentile, in ms, and over one row without taps")
    for name, own in times.items():
        print(f"{name}: {(np.quantile(own, shown) * 1e3).round(3)} {np.median(own) / base:.4f}")
    print(f"speedup: {np.quantile(speedups, shown).round(3)}")


if __name__ == "__main__":
    {"build": lambda folder: (save(folder), build(folder)), "measure": measure}[sys.argv[1]](Path(sys.argv[2]))
