"""What a draft that reads hidden states costs and gives over a large target: random weights, acceptance drawn by lot.

    python benchmarks/synthetic_head.py build OUT
    python benchmarks/synthetic_head.py measure OUT [--threads 2] [--tokens 64] [--repeats 8]

The target has a Llama's layers, 1.27 G parameters, and the vocabulary of Llama 3. The EAGLE-3 head has one layer of the
target's width and proposes 32 000 tokens; a pass of it reads 5.1 % of the weights that one of the target reads, 5.0 %
with Llama-3.1-8B. Both are rounded to int8 without calibration and without proofs, which would take hours and change
no time. OUT/plain.bundle has the target alone.

Draft passes are run as they are. What they propose is replaced by the target's own tokens or by wrong ones, so that
drafts are right up to position 1, 2 and 3 in ACCEPTED of all rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from hardware import describe_hardware

TOKENIZER = Path(__file__).parent.parent / "examples/demo_pair/target"
ACCEPTED = (0.75, 0.6, 0.5)
K, CAPACITY, CHUNK = len(ACCEPTED), 1024, 256
LAYERS, WIDTH, INNER, HEADS, KV_HEADS, DIM, VOCAB, KEPT = 52, 1280, 4480, 20, 5, 64, 128256, 32000
SIZES: dict[str, Any] = dict(
    hidden_size=WIDTH, intermediate_size=INNER, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM
) | dict(vocab_size=VOCAB, max_position_embeddings=CAPACITY, tie_word_embeddings=False)


def save(folder: Path) -> None:
    """Write folder/target and folder/head, the latter in speculators' format."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    torch.manual_seed(0)
    ends = dict(bos_token_id=0, eos_token_id=0, tie_word_embeddings=True)
    config = LlamaConfig(**SIZES | ends, num_hidden_layers=LAYERS)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "target")
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder / "target")
    shapes = {f"layers.0.self_attn.{name}_proj": (KV_HEADS * DIM, 2 * WIDTH) for name in "kv"}
    shapes |= {"layers.0.self_attn.q_proj": (HEADS * DIM, 2 * WIDTH), "layers.0.self_attn.o_proj": (WIDTH, HEADS * DIM)}
    shapes |= {f"layers.0.mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")}
    shapes |= {"layers.0.mlp.down_proj": (WIDTH, INNER), "fc": (WIDTH, 3 * WIDTH), "lm_head": (KEPT, WIDTH)}
    weights = {f"{name}.weight": 0.02 * torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    norms = ("layers.0.input_layernorm", "layers.0.hidden_norm", "layers.0.post_attention_layernorm", "norm")
    weights |= {f"{name}.weight": torch.ones(WIDTH).bfloat16() for name in norms}
    ids = torch.arange(KEPT) * 4
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[ids] = True
    (folder / "head").mkdir()
    save_file(weights | {"d2t": ids - torch.arange(KEPT), "t2d": known}, folder / "head/model.safetensors")
    layer = SIZES | dict(model_type="llama", num_hidden_layers=1, rms_norm_eps=1e-6, rope_theta=10000.0)
    head = dict(architectures=["Eagle3DraftModel"], speculators_model_type="eagle3", draft_vocab_size=KEPT)
    (folder / "head/config.json").write_text(json.dumps(head | dict(transformer_layer_config=layer)))


def build(folder: Path) -> None:
    from specexport.bundle import LayerProof, Proof
    from specexport.exporter import build as pipeline
    from specexport.exporter import export_model
    from specexport.exporter.hidden_drafts.base import HiddenDraft
    from specexport.exporter.options import BuildOptions
    from specexport.exporter.recipe_choice import Chosen
    from specexport.exporter.weights.layers import linear_layers
    from specexport.exporter.weights.recipe import LARGEST_LIMIT, Recipe, WeightRecipe

    def nearest(quantizing: Any, checkpoint: Any, model: Any, *_: Any) -> Chosen:
        left = model.fusing if isinstance(model, HiddenDraft) else ()
        names = [layer.weight for layer in linear_layers(model) if layer.weight not in left]
        return Chosen(Recipe(dict.fromkeys(names, WeightRecipe("int8", limit=LARGEST_LIMIT))), None, ())

    def unproved(folder: Path, role: Any, spec: Any, *_: Any) -> Any:
        return replace(spec, proofs=(Proof("none", "kernels", role, 0, 0, 0.0, 0.0),))

    none = LayerProof("kernels", 0, 0.0, False, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0)
    skipped = dict(record_reference=lambda *_: [], continued_logits=lambda *_: [], prove_layers=lambda *_: none)
    options = BuildOptions(CAPACITY, K, prompt_chunk=CHUNK, precision="int8", cache=folder / "cache")
    with patch.multiple(export_model, choose_recipe=nearest, **skipped), patch.object(pipeline, "prove", unproved):
        target, head = str(folder / "target"), str(folder / "head")
        pipeline.build(target, None, folder / "plain.bundle", options)
        pipeline.build(target, head, folder / "head.bundle", options)


Times = dict[str, list[float]]


def timed(times: Times, name: str, run: Callable[[], Any]) -> Any:
    start = perf_counter()
    result = run()
    times.setdefault(name, []).append(perf_counter() - start)
    return result


def measure_passes(times: Times, plain: Any, session: Any, tokens: list[int], repeats: int) -> None:
    """The passes of a round after a context of a chunk, in the order of rounds, and those over the prompt."""
    from specexport.runtime.sampling.rules import GreedyRule

    draft, target, taps = session.drafts.context.draft, session.engine.target, session.engine.taps
    rule, place = GreedyRule(VOCAB), CHUNK

    def take(position: int, count: int) -> Any:
        draft.take(tokens, position, taps()[:count])
        return draft.catch_up(tokens, place) if not position else rule.propose(draft.first(tokens[: place + count + 1], K + 1)[-1])

    for number in range(repeats):
        decoders = [("without taps", plain.engine.target), ("with taps", target)]
        if number % 8 == 0:
            draft.keep(0)
            for name, decoder in decoders:
                timed(times, f"prompt {name}", lambda decoder=decoder: decoder.feed(tokens[:place], 0))
            timed(times, "prompt of the draft", lambda: take(0, place))
        for name, decoder in decoders[:: 1 if number % 2 else -1]:
            timed(times, f"plain {name}", lambda decoder=decoder: decoder.step(tokens[place : place + 1], place))
        timed(times, "verify", lambda: target.step(tokens[place : place + K + 1], place))
        accepted = number % (K + 1)
        draft.keep(place)
        timed(times, f"first, {accepted} accepted", lambda count=accepted + 1: take(place, count))
        for index in range(K - 1):
            row = place + accepted + 1 + index
            timed(times, "draft", lambda row=row: rule.propose(draft.next(tokens[row], row)[-1]))


def measure_rounds(plain: Any, session: Any, prompt: list[int], repeats: int) -> list[tuple[float, float, float]]:
    """Seconds of 57 tokens: decoded plainly without taps and with them, and in 20 rounds that draft."""
    from specexport.runtime.drafting.hidden_draft import HiddenDraft

    deck = [count for count, share in enumerate(np.diff([1.0, *ACCEPTED, 0.0])) for _ in range(round(-20 * share))]
    wanted, random, original = len(deck) + sum(deck), np.random.default_rng(0), HiddenDraft.one_by_one
    known = [*prompt, *session.generate(prompt, max_new_tokens=wanted + 20, speculate=False, stop_token_ids=()).tokens]
    right: Iterator[int] = iter(())

    def by_lot(self: HiddenDraft, tokens: Sequence[int], plan: Any) -> Iterator[int]:
        count = next(right)
        for index, _ in enumerate(original(self, tokens, plan)):
            token = known[len(tokens) + index]
            yield token if index < count else (token + 1) % VOCAB

    def seconds(session: Any, rounds: int, **options: Any) -> float:
        stream, made = session.stream(prompt, max_new_tokens=wanted + 20, stop_token_ids=(), **options), []
        for number, chunk in enumerate(stream):
            made += chunk.tokens
            if number == 0:
                start, first = perf_counter(), len(made)
            elif number == rounds:
                break
        taken = perf_counter() - start
        stream.close()
        assert len(made) == first + wanted
        assert made == known[len(prompt) :][: len(made)]
        return taken

    found = []
    for _ in range(repeats):
        right = iter([0, *random.permutation(deck).tolist()])
        with patch.object(HiddenDraft, "one_by_one", by_lot):
            drafted = seconds(session, len(deck), num_draft_tokens=K)
        found.append((*(seconds(one, wanted, speculate=False) for one in (plain, session)), drafted))
    return found


def spread(values: Sequence[float], digits: int = 3) -> str:
    low, *_, high = quantiles(values, n=10)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def measure(folder: Path, threads: int, repeats: int) -> None:
    import specexport

    plain, session = (specexport.load(folder / f"{name}.bundle", policy=False, threads=threads) for name in ("plain", "head"))
    tokens = np.random.default_rng(1).integers(3, VOCAB, CHUNK + 16).tolist()
    measure_passes({}, plain, session, tokens, 8)
    measure_passes(times := {}, plain, session, tokens, 8 * repeats)
    rounds = measure_rounds(plain, session, tokens[:CHUNK], repeats)
    print(f"{describe_hardware()}; {threads or 'all'} threads; medians, 10th to 90th percentile\n")
    print("| pass | ms | over a plain one |\n|---|---|---|")
    for name, own in times.items():
        base = times["prompt without taps" if name.startswith("prompt") else "plain without taps"]
        print(f"| {name} | {spread([1e3 * one for one in own], 2)} | {median(own) / median(base):.3f} |")
    gains = [before / drafted for before, _, drafted in rounds]
    print(f"\n57 tokens in 20 rounds over plain decoding without taps: {spread(gains)}")
    print(f"plain decoding with taps over without, time: {spread([tapped / before for before, tapped, _ in rounds])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=0, help="0 for one per core")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.what == "build":
        save(arguments.folder)
        build(arguments.folder)
    else:
        measure(arguments.folder, arguments.threads, arguments.repeats)


if __name__ == "__main__":
    main()
