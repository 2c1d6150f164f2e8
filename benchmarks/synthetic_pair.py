"""Makes a Llama-shaped pair of random weights that costs as much as a trained pair, with a given agreement.

    python benchmarks/synthetic_pair.py OUT [--agreement 0.8] [--seed 0] [--outliers 4] [--small] [--hybrid]

OUT/target has about 280 M parameters in 24 layers; OUT/draft is its first two layers with the same embedding and final
norm, about 27 M. The contributions of the later layers to the residual stream are scaled until the draft predicts the
wanted share of the tokens of the target's own greedy text. Both have the demo pair's tokenizer and are stored as
float16.

--hybrid: with the widths of Qwen3.5-0.8B, and three layers of a gated delta rule for each one of attention
(`synthetic_hybrid.py`): about 310 M parameters in 16 layers; the draft is the first four, about 80 M.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from synthetic_hybrid import HybridSizes, draw_recurrence, hybrid_config
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PretrainedConfig, PreTrainedModel

EXAMPLES = Path(__file__).parent.parent / "examples"
TOKENIZER = EXAMPLES / "demo_pair/target"
NEW_TOKENS = 48
ACCEPTANCE_TOLERANCE = 0.01


@dataclass(frozen=True)
class Shape:
    """Sizes of the target; the draft is its first `draft_layers` layers. outliers: see `drawn_norm`.

    hybrid: additional sizes of a hybrid.
    """

    layers: int = 24
    draft_layers: int = 2
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 8
    intermediate: int = 2688
    positions: int = 2048
    outliers: float = 4.0
    hybrid: HybridSizes | None = None

    def config(self, vocab_size: int, layers: int) -> PretrainedConfig:
        sizes: dict[str, Any] = dict(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            vocab_size=vocab_size,
            max_position_embeddings=self.positions,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
        return LlamaConfig(**sizes) if self.hybrid is None else hybrid_config(self.hybrid, sizes)


FULL = Shape()
HYBRID = Shape(layers=16, draft_layers=4, heads=8, kv_heads=2, intermediate=3072, hybrid=HybridSizes())
SMALL = Shape(layers=6, hidden=64, heads=4, kv_heads=2, intermediate=128)


@dataclass(frozen=True)
class Found:
    """Figures of the saved pair. agreement: share of the greedy tokens that the draft predicts after the same text.

    distinct: mean share of distinct tokens in a greedy text. loops: share of the texts that end in a cycle of at most
    four tokens. factor: by how much the later layers' contributions were scaled. parameters: of target and draft.
    """

    agreement: float
    distinct: float
    loops: float
    factor: float
    parameters: tuple[int, int]


def drawn(weight: torch.Tensor, gain: float, generator: torch.Generator) -> None:
    """Fill with normal weights that scale a unit input by `gain`; rows differ in scale, as in trained models."""
    rows = torch.exp(0.3 * torch.randn(weight.shape[0], 1, generator=generator))
    weight.copy_(torch.randn(weight.shape, generator=generator) * rows * (gain / math.sqrt(weight.shape[1])))


def drawn_norm(weight: torch.Tensor, outliers: float, generator: torch.Generator) -> None:
    """Fill with values around 1; one of 200 channels (at least two) is from `outliers` / 2 to `outliers`, which is hard
    for int8 activations.
    """
    weight.copy_(torch.exp(0.15 * torch.randn(weight.shape, generator=generator)))
    chosen = torch.randperm(len(weight), generator=generator)[: max(2, len(weight) // 200)]
    weight[chosen] *= outliers / 2 * (1 + torch.rand(len(chosen), generator=generator))


@torch.no_grad()
def make_target(shape: Shape, vocab_size: int, seed: int) -> PreTrainedModel:
    """A target whose later layers contribute as much as its first ones; `scale_later_layers` changes that."""
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(shape.config(vocab_size, shape.layers)).eval()
    embedding = model.model.embed_tokens.weight
    # Embeddings are tied, so the rest of the input's embedding in the residual stream favours the same token again: the
    # layers must outweigh it, or greedy text repeats one token forever.
    embedding.copy_(torch.randn(embedding.shape, generator=generator) * (0.64 / math.sqrt(shape.hidden)))
    embedding[0] *= 0.01  # the end token: its logit is about 0, so it is never chosen
    for layer in model.model.layers:
        mlp, values = layer.mlp, []
        if hasattr(layer, "self_attn"):
            # Sharp attention; otherwise every context would look like its mean.
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                drawn(projection.weight, 1.5, generator)
            values = [layer.self_attn.v_proj]
        else:
            draw_recurrence(layer.linear_attn, drawn, generator)
        for projection in (*values, mlp.gate_proj, mlp.up_proj, output_of(layer), mlp.down_proj):
            drawn(projection.weight, 1.0, generator)
        drawn_norm(layer.input_layernorm.weight, shape.outliers, generator)
        drawn_norm(layer.post_attention_layernorm.weight, shape.outliers, generator)
    drawn_norm(model.model.norm.weight, shape.outliers, generator)
    model.model.norm.weight *= 4  # logits of standard deviation 3, so that a vocabulary of 4096 has clear maxima
    if shape.hybrid is not None:  # its norms multiply by 1 plus their weights
        for norm in norms_of(model):
            norm.weight -= 1
    return model


def norms_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    layers = model.model.layers
    return [model.model.norm, *(norm for x in layers for norm in (x.input_layernorm, x.post_attention_layernorm))]


def output_of(layer: torch.nn.Module) -> torch.nn.Linear:
    """The output projection of a layer's attention or recurrence, which adds to the residual stream."""
    return layer.self_attn.o_proj if hasattr(layer, "self_attn") else layer.linear_attn.out_proj


@torch.no_grad()
def scale_later_layers(model: PreTrainedModel, first: int, factor: float) -> None:
    """Scale the contributions of the layers from `first` on to the residual stream."""
    for layer in model.model.layers[first:]:
        output_of(layer).weight *= factor
        layer.mlp.down_proj.weight *= factor


def cut(target: PreTrainedModel, shape: Shape) -> PreTrainedModel:
    """The target without its later layers; the tensors are shared."""
    with torch.device("meta"):
        draft = AutoModelForCausalLM.from_config(shape.config(target.config.vocab_size, shape.draft_layers)).eval()
    draft.model.layers = target.model.layers[: shape.draft_layers]
    for name in ("embed_tokens", "norm", "rotary_emb"):
        setattr(draft.model, name, getattr(target.model, name))
    draft.lm_head = target.lm_head
    return draft


def read_prompts(count: int, length: int = 24) -> torch.Tensor:
    """Prompts alternating between the demo pair's routes, [count, length] token ids."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    files = [
        (EXAMPLES / f"prompts/{route}.jsonl").read_text(encoding="utf-8").splitlines() for route in ("code", "prose")
    ]
    texts = [json.loads(line)["prompt"] for lines in zip(*files, strict=False) for line in lines]
    rows = [tokens[:length] for text in texts if len(tokens := tokenizer(text).input_ids) >= length]
    return torch.tensor(rows[:count])


@torch.no_grad()
def greedy(model: PreTrainedModel, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Greedy continuations, prompts included: [count, length + new_tokens]."""
    options = dict(max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)


@torch.no_grad()
def agreement(target: PreTrainedModel, draft: PreTrainedModel, texts: torch.Tensor, new_tokens: int) -> float:
    """The share of the last new_tokens tokens for which both models' largest logit is the same, after the same text."""
    choices = [model(texts).logits[:, -new_tokens - 1 : -1].argmax(-1) for model in (target, draft)]
    return float((choices[0] == choices[1]).float().mean())


def loops(texts: torch.Tensor, longest: int = 4) -> float:
    """The share of rows whose last 16 tokens repeat with a period of at most `longest`."""
    tails = texts[:, -16:]
    cyclic = [(tails[:, period:] == tails[:, :-period]).all(1) for period in range(1, longest + 1)]
    return float(torch.stack(cyclic).any(0).float().mean())


def tune(
    target: PreTrainedModel, draft: PreTrainedModel, shape: Shape, wanted: float, texts: torch.Tensor, new_tokens: int
) -> float:
    """The factor for the later layers with which the draft agrees as wanted on `texts`; bisects its logarithm."""
    low, high, current = math.log(1e-3), math.log(4.0), 0.0
    for _ in range(10):
        middle = (low + high) / 2
        scale_later_layers(target, shape.draft_layers, math.exp(middle - current))
        current = middle
        found = agreement(target, draft, texts, new_tokens)
        print(f"later layers scaled by {math.exp(middle):.4f}: agreement {found:.3f}", file=sys.stderr)
        if abs(found - wanted) <= ACCEPTANCE_TOLERANCE:
            break
        low, high = (middle, high) if found > wanted else (low, middle)
    return math.exp(current)


def make_pair(
    output: Path, wanted: float, seed: int = 0, shape: Shape = FULL, count: int = 16, new_tokens: int = NEW_TOKENS
) -> Found:
    """Write output/target and output/draft; the figures are measured on `count` prompts, with the saved weights."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    prompts = read_prompts(2 * count)
    target = make_target(shape, len(tokenizer), seed)
    draft = cut(target, shape)
    # The draft's own text: it does not depend on the factor, and takes a tenth of the work to generate.
    texts = greedy(draft, prompts[:count], new_tokens)
    factor = tune(target, draft, shape, wanted, texts, new_tokens)
    for model, name in ((target, "target"), (draft, "draft")):
        model.half().save_pretrained(output / name)
        tokenizer.save_pretrained(output / name)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(output / name, dtype=torch.float32) for name in ("target", "draft")
    )
    texts = greedy(target, prompts[count:], new_tokens)
    distinct = sum(len(row.unique()) for row in texts[:, -new_tokens:]) / (len(texts) * new_tokens)
    sizes = (int(target.num_parameters()), int(draft.num_parameters()))
    return Found(agreement(target, draft, texts, new_tokens), distinct, loops(texts), factor, sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--agreement", type=float, default=0.8, help="share of the greedy tokens that the draft predicts"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outliers", type=float, default=FULL.outliers, help="size of the largest channels of a norm")
    parser.add_argument("--small", action="store_true", help="six narrow layers, for a quick test")
    parser.add_argument("--hybrid", action="store_true", help="three layers of a gated delta rule per attention layer")
    arguments = parser.parse_args()
    if not 0 < arguments.agreement < 1:
        parser.error(f"--agreement is {arguments.agreement}; it must lie between 0 and 1")
    if arguments.small and arguments.hybrid:
        parser.error("--small and --hybrid: choose one")
    shape = SMALL if arguments.small else HYBRID if arguments.hybrid else FULL
    found = make_pair(
        arguments.output, arguments.agreement, arguments.seed, replace(shape, outliers=arguments.outliers)
    )
    target, draft = found.parameters
    print(
        f"target {target / 1e6:.1f} M parameters, draft {draft / 1e6:.1f} M; later layers scaled by {found.factor:.4f}"
    )
    print(f"agreement {found.agreement:.3f} on prompts that were not tuned on (wanted {arguments.agreement})")
    print(
        f"greedy text: {found.distinct:.0%} of {NEW_TOKENS} tokens are different ones, "
        f"{found.loops:.0%} of the texts end in a short loop"
    )


if __name__ == "__main__":
    main()
