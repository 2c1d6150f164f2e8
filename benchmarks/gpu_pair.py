"""A pair of the sizes of Llama-3.1-8B and Llama-3.2-1B on a GPU; the draft agrees with a share of the target's tokens.

    python benchmarks/gpu_pair.py build OUT [--precision fp16 int4] [--agreement 0.8] [--capacity 2048] [--small]
    python benchmarks/gpu_pair.py measure OUT --context 1024 [--repeats 5] [--chunks 64 512] [--json FILE]
    python benchmarks/gpu_pair.py transformers OUT --context 1024 [eager] [assisted] [static]

For 16384 tokens: build OUT16 --capacity 16896; measure OUT16 --context 16384 --repeats 3; transformers OUT16 --context
16384 static. The first token's time is by --chunks; `static` needs a C compiler and Python's headers.

`build` writes OUT/target and OUT/draft in fp16, 19 GB, and OUT/pair.bundle without proofs; it needs as much again
meanwhile. --precision: of target and draft; weights are rounded to nearest, which takes minutes. Greedy text is a walk:
the token after x is pi(x) for a random permutation pi, since row pi(x) of the output layer is embedding x and layers
add little. The draft has the share --agreement of pi. `measure`: generations, whose greedy tokens must be those of
plain decoding, then passes and rounds, interleaved. The floor is the time that reading the weights and the cache takes
at the bandwidth of a copy. `transformers`: the same weights and prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from hardware import describe_hardware
from specexport import SpecExportError
from specexport.bundle import Bundle

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from gpucheck.llama import Llama
from gpucheck.measurements.bandwidth import floor_ms, measure_bandwidth
from gpucheck.measurements.passes import pass_samples
from gpucheck.measurements.rounds import RoundKey, timed_round
from gpucheck.session_under_test import open_subject
from gpucheck.timing import Sample, Spread, interleaved

ENGINE, CARD, WAYS = "onnxruntime-cuda", "cuda", ("eager", "assisted", "static")
PAIR, SMALL = (  # layers, width, heads, their keys, width of the MLP, vocabulary
    {role: Llama(*sizes, tied=False, positions=32768) for role, sizes in pair.items()}
    for pair in (
        {"target": (32, 4096, 32, 8, 14336, 128256), "draft": (16, 2048, 32, 8, 8192, 128256)},
        {"target": (2, 1024, 16, 8, 2048, 4096), "draft": (1, 512, 8, 4, 1024, 4096)},
    )
)
# Spreads of embeddings and of o_proj and down_proj; the output layer's rows over the embeddings that they are.
EMBEDDING, ADDED, OUTPUT = 1.0, 0.0004, 0.3
KS, WIDTHS, NEW_TOKENS, SAMPLES = (0, 2, 4, 7), (1, 2, 3, 5, 8), 96, 20
ROUNDS = [*(("greedy", k) for k in KS), ("block", 0), ("block", 4)]
say = partial(print, flush=True)


def write_pair(out: Path, agreement: float, pair: dict[str, Llama]) -> None:
    import torch
    from gpucheck import checkpoints

    generator, vocabulary = torch.Generator().manual_seed(0), pair["target"].vocab_size
    after = torch.randperm(vocabulary, generator=generator)
    usual = checkpoints._part
    for seed, (role, model) in enumerate(pair.items(), 1):
        if role == "draft":
            wrong = (torch.rand(vocabulary, generator=generator) > agreement).nonzero()[:, 0]
            after[wrong] = after[wrong[torch.randperm(len(wrong), generator=generator)]]

        def part(model: Llama, index: int, dice: Any, seed: int = seed) -> dict[str, Any]:
            tensors: dict[str, Any] = usual(replace(model, tied=True), index, dice)
            for name, tensor in tensors.items():
                if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")):
                    tensor *= (EMBEDDING if "embed" in name else ADDED) / model.spread
            if index > model.layers:
                (embedding,) = part(model, 0, checkpoints._Dice(seed, 0, model.spread, 0.0)).values()
                tensors["lm_head.weight"] = torch.empty_like(embedding)
                tensors["lm_head.weight"][after] = embedding.mul_(OUTPUT)
            return tensors

        with patch.object(checkpoints, "_part", part):
            checkpoints.write_checkpoint(out / role, model, seed)


def build(out: Path, capacity: int, precision: str, draft_precision: str) -> None:
    from specexport.bundle import Fidelity, LayerProof, Proof
    from specexport.exporter import build as pipeline
    from specexport.exporter import export_model
    from specexport.exporter.options import BuildOptions
    from specexport.exporter.recipe_choice import Chosen
    from specexport.exporter.weights.recipe import LARGEST_LIMIT, Recipe, WeightRecipe

    def nearest(quantizing: Any, _: Any, model: Any, contract: Any, *__: Any) -> Any:
        form = quantizing.format
        one = WeightRecipe(form, 32, LARGEST_LIMIT, scale_type=contract.precision, weight_only=form == "int8")
        matrices = [name for name, parameter in model.named_parameters() if parameter.ndim == 2]
        return Chosen(Recipe(dict.fromkeys(matrices, one)), Fidelity(0, False, 1.0, 1.0, 0.0, 1.0), ())

    def unproved_layers(_: Any, dialect: str, *__: Any) -> Any:
        return LayerProof(dialect, 0, 0.0, False, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0)

    def unproved(folder: Path, role: Any, spec: Any, *_: Any) -> Any:
        return replace(spec, proofs=(Proof("none", "ort", role, 0, 0, 0.0, 0.0),))

    skipped: dict[str, Any] = dict(record_reference=lambda *_: [], continued_logits=lambda *_: [])
    skipped |= dict(choose_recipe=nearest, prove_layers=unproved_layers, fake_quantized=lambda *_: nullcontext())
    options: dict[str, Any] = dict(precision=precision, draft_precision=draft_precision, engines=(ENGINE,), force=True)
    with patch.multiple(export_model, **skipped), patch.object(pipeline, "prove", unproved):
        with TemporaryDirectory(dir=out) as cache:
            asked = BuildOptions(capacity, max(KS), **options, cache=Path(cache))
            pipeline.build(str(out / "target"), str(out / "draft"), out / "pair.bundle", asked)


def shown(spread: Spread, unit: str, digits: int = 1) -> str:
    return f"{spread.median:.{digits}f} {unit} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def random_prompt(vocab_size: int, context: int) -> Any:
    return np.random.default_rng(0).integers(0, vocab_size, context).tolist()


def first_token(session: Any, prompt: list[int], chunk: int) -> list[float]:
    """Seconds to the first token, four times from an empty cache; the first time prepares what later ones reuse."""
    seconds = []
    for _ in range(4):
        session.reset()
        start = perf_counter()
        session.generate(prompt, max_new_tokens=1, stop_token_ids=())
        seconds.append(perf_counter() - start)
    say(f"first token, chunks of {chunk}: {seconds[0]:.3f} s, then {shown(Spread.of(seconds[1:]), 's', 3)}")
    return seconds


def generations(session: Any, prompt: list[int], repeats: int) -> dict[str, Any]:
    """Tokens per second after the prompt, by number of draft tokens."""

    def run(k: int, new: int, **options: Any) -> Any:
        return session.generate(prompt, max_new_tokens=new, num_draft_tokens=k, stop_token_ids=(), **options)

    made: dict[int, list[Any]] = {k: [] for k in KS}
    for k in KS:
        run(k, 8)
    for _ in range(repeats):
        for k in KS:
            made[k].append(run(k, NEW_TOKENS))
            assert made[k][-1].tokens == made[0][0].tokens, f"k = {k} gave other tokens than plain decoding"
    found: dict[str, Any] = {}
    plain = np.array([each.statistics.tokens_per_second for each in made[0]])
    for k, own in made.items():
        speeds, last = [each.statistics.tokens_per_second for each in own], own[-1].statistics
        over, per_round = float(np.median(speeds / plain)), last.accepted / last.rounds + 1
        found[str(k)] = asdict(Spread.of(speeds)) | dict(over_plain=over, tokens_a_round=per_round)
        speed = shown(Spread.of(speeds), "tokens/s")
        say(f"k = {k}: {speed}, {over:.2f} x plain, {per_round:.2f} a round, same tokens")
    for k in (0, 4):
        second = [run(k, 64, temperature=1.0, seed=1) for _ in range(2)][1].statistics
        found[f"sampled {k}"] = second.tokens_per_second
        say(f"sampled, k = {k}: {second.tokens_per_second:.1f} tokens/s")
    return found


def passes_and_rounds(meter: Any, session: Any, span: int) -> dict[str, Any]:
    """Milliseconds of passes at `span` and of rounds, the latter on the GPU alone and by the wall clock."""
    import onnx

    engine, bundle, samples = session.engine, session.bundle, dict[tuple[Any, ...], Sample]()
    bandwidth = measure_bandwidth(meter._device, SAMPLES).median
    for role, decoder, widths in (("target", engine.target, WIDTHS), ("draft", engine.draft.decoder, (1, 2))):
        own = pass_samples(meter, decoder, [(width, span) for width in widths])
        samples |= {(role, width): sample for (width, _), sample in own.items()}
    rounds = {key: timed_round(meter, engine.rounds, RoundKey(*key, span)) for key in ROUNDS}
    for key, timed in rounds.items():
        samples |= {("gpu", *key): timed.gpu, ("wall", *key): timed.wall}
    times = interleaved(samples, SAMPLES)
    for name, spread in times.items():
        say(f"{' '.join(map(str, name))}: {shown(spread, 'ms', 4)}")
    ms = {name: spread.median for name, spread in times.items()}
    tensors = onnx.load(bundle.path("graphs/target-ort.onnx"), load_external_data=False).graph.initializer
    multiplied = [tensor.external_data for tensor in tensors if "embed_tokens" not in tensor.name]
    read = [int(entry.value) for data in multiplied for entry in data if entry.key == "length"]
    row = bundle.manifest.target.cache_bytes(bundle.manifest.contract) // bundle.manifest.contract.capacity
    floor = floor_ms(sum(read), row * span, bandwidth)
    share = floor / ms["wall", "greedy", 0]
    say(f"floor {floor:.3f} ms at {bandwidth / 1e9:.0f} GB/s, {share:.3f} of a plain round by the wall clock")
    say("width over 1:", {width: round(ms["target", width] / ms["target", 1], 3) for width in WIDTHS[1:]})
    for (rule, k), timed in rounds.items():
        passes = ms["target", k + 1] + (ms["draft", 2] + (k - 1) * ms["draft", 1] if k else 0.0)
        gpu, host = ms["gpu", rule, k], 1e3 * (ms["wall", rule, k] - ms["gpu", rule, k])
        say(f"round {rule} {k}: {gpu / passes:.3f} of its passes, host {host:.0f} us, {timed.counts}")
    named = {" ".join(map(str, name)): asdict(spread) for name, spread in times.items()}
    return dict(span=span, copy_gb_s=bandwidth / 1e9, floor_ms=floor, floor_share=share, times=named)


def measure(out: Path, context: int, repeats: int, chunks: list[int], to: Path | None) -> None:
    import torch

    root, start, free = out / "pair.bundle", perf_counter(), torch.cuda.mem_get_info()[0]
    subject = open_subject(root, ENGINE, {})
    session, taken = subject.session, (free - torch.cuda.mem_get_info()[0]) / 2**30
    manifest, card = session.bundle.manifest, torch.cuda.get_device_name()
    contract, prompt = manifest.contract, random_prompt(manifest.target.vocab_size, context)
    if context + NEW_TOKENS > contract.capacity:
        sys.exit(f"--context {context} and {NEW_TOKENS} tokens exceed the bundle's capacity, {contract.capacity}")
    found: dict[str, Any] = dict(card=card, context=context, load_s=perf_counter() - start, gib=taken)
    say(f"{card}; {describe_hardware()}; context {context}, capacity {contract.capacity}")
    say(f"loaded in {found['load_s']:.1f} s, {taken:.2f} GiB of the card's memory")
    assert session.engine.rounds is not None, "whole rounds run on the GPU"
    found["first_token_s"] = {contract.prompt_chunk: first_token(session, prompt, contract.prompt_chunk)}
    found["generate"] = generations(session, prompt, repeats)
    found |= passes_and_rounds(subject.meter, session, context + NEW_TOKENS)
    session.close()
    for chunk in chunks:
        changed = replace(manifest, contract=replace(contract, prompt_chunk=chunk))
        with patch.object(Bundle, "open", lambda *_, changed=changed, **__: Bundle(root, changed)):
            other = open_subject(root, ENGINE, {}).session
        found["first_token_s"][chunk] = first_token(other, prompt, chunk)
        other.close()
    if to:
        to.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def run_transformers(out: Path, context: int, ways: list[str]) -> None:
    import torch
    import transformers

    def load(role: str) -> Any:
        loaded: Any = transformers.LlamaForCausalLM.from_pretrained(out / role, dtype=torch.float16)
        loaded.generation_config.eos_token_id = None  # `measure` has no stop tokens either
        return loaded.to(CARD).eval()

    def timed(new: int, **options: Any) -> float:
        torch.cuda.synchronize()
        start = perf_counter()
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)
        torch.cuda.synchronize()
        assert made.shape[1] == context + new
        return perf_counter() - start

    def rate(new: int, **options: Any) -> str:
        """Tokens per second after the second, the time of two taken off."""
        options |= dict(do_sample=False, pad_token_id=0)
        timed(2, **options)
        two = statistics.median(timed(2, **options) for _ in range(3))
        return shown(Spread.of([new / (timed(new + 2, **options) - two) for _ in range(3)]), "tokens/s")

    model = load("target")
    ids = torch.tensor([random_prompt(model.config.vocab_size, context)], device=CARD)
    say(f"{torch.cuda.get_device_name()}; transformers {transformers.__version__}, torch {torch.__version__}")
    with torch.no_grad():
        if "eager" in ways:
            say("eager, dynamic cache:", rate(64))
        if "assisted" in ways:
            draft = load("draft")
            settings: dict[str, Any] = dict(
                num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
            )
            for k in (4, 7):
                draft.generation_config.update(num_assistant_tokens=k, **settings)
                say(f"assisted, eager, k = {k}:", rate(NEW_TOKENS, assistant_model=draft))
        if "static" in ways:
            say("static cache, torch.compile reduce-overhead:", shown(static_rate(model, ids), "tokens/s"))


def static_rate(model: Any, ids: Any, new: int = 48, chunk: int = 512) -> Spread:
    """Tokens per second of single compiled passes with their argmax, thrice. The prompt is read eagerly."""
    import torch
    from transformers import StaticCache

    context, eager = ids.shape[1], type(model).forward
    cache: Any = StaticCache(config=model.config, max_cache_len=context + 256)
    own: dict[str, Any] = dict(past_key_values=cache, use_cache=True, logits_to_keep=1)
    places = torch.arange(context + 256, device=CARD)[None]
    for start in range(0, context, chunk):
        rows = slice(start, min(start + chunk, context))
        made = eager(model, ids[:, rows], position_ids=places[:, rows], **own)
    token, position = made.logits[:, -1:].argmax(-1).clone(), places[:, context].clone()
    model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def decode(count: int) -> float:
        nonlocal token, position
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(count):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            token = model(token, position_ids=position[None], **own).logits[:, -1:].argmax(-1).clone()
            position = position + 1
        torch.cuda.synchronize()
        return count / (perf_counter() - start)

    decode(6)  # compiles and captures
    return Spread.of([decode(new) for _ in range(3)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "measure", "transformers"))
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of transformers: {', '.join(WAYS)}; default: all")
    parser.add_argument("--precision", nargs=2, default=("fp16", "fp16"), metavar="NAME", help="target's and draft's")
    parser.add_argument("--agreement", type=float, default=0.8, help="share of tokens that the draft knows")
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--small", action="store_true", help="two narrow layers, to try this script")
    parser.add_argument("--context", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--repeats", type=int, default=5, help="generations for each number of draft tokens")
    parser.add_argument("--chunks", type=int, nargs="*", default=[], help="prompt chunks to try in addition")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_intermixed_args()
    if unknown := {*given.ways} - ({*WAYS} if given.command == "transformers" else set()):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; `transformers` has {', '.join(WAYS)}")
    if given.command != "build":
        import torch

        if not torch.cuda.is_available():
            parser.error(f"{given.command} needs a GPU, and torch {torch.__version__} finds none")
    if given.command == "build":
        write_pair(given.out, given.agreement, SMALL if given.small else PAIR)
        build(given.out, given.capacity, *given.precision)
    elif given.command == "measure":
        measure(given.out, given.context, given.repeats, given.chunks, given.json)
    else:
        run_transformers(given.out, given.context, given.ways or list(WAYS))


if __name__ == "__main__":
    try:
        main()
    except SpecExportError as error:
        sys.exit(str(error))
