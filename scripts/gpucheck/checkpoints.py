"""Random checkpoints of Llama's shape, made here: a hub is not needed, and memory never holds more than one layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerFast

WORDS = ["<s>", "</s>", *"abcdefghijklmn"]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Llama:
    """tied: the embedding is the output layer too. spread: standard deviation of the weights."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab_size: int
    tied: bool
    positions: int
    spread: float = 0.02

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        attention = 2 * self.hidden * (self.hidden + self.kv_heads * self.head_dim)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + (1 if self.tied else 2) * self.vocab_size * self.hidden

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            architectures=["LlamaForCausalLM"],
            vocab_size=self.vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=self.tied,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
            bos_token_id=0,
            eos_token_id=1,
            dtype=torch.float16,
        )


def write_checkpoint(folder: Path, model: Llama, seed: int, strangeness: float = 0.0) -> None:
    """Weights in fp16, a file for each layer, and a tokenizer of 16 words.

    strangeness: how far the weights stray from those of the same model and seed without it, in units of their spread. A
    draft that strays a little from its target is accepted now and then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    size = 0
    for index, tensors in enumerate(_parts(model, _Dice(seed, model.spread, strangeness))):
        file = f"model-{index:05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        size += sum(tensor.nbytes for tensor in tensors.values())
    index_file = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))
    _tokenizer().save_pretrained(folder)
    model.config().save_pretrained(folder)  # last: with it, the checkpoint is whole


class _Dice:
    """Random weights, the same ones for the same seed whatever the strangeness is."""

    def __init__(self, seed: int, spread: float, strangeness: float) -> None:
        self._weights, self._noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
        self._spread, self._strangeness = spread, strangeness

    def weight(self, rows: int, columns: int) -> Tensor:
        return self._draw(rows, columns)

    def norm(self, size: int) -> Tensor:
        """Not all ones: a graph that leaves a norm's weight out must show."""
        return self._draw(size).mul_(0.1 / self._spread).add_(1.0)

    def _draw(self, *shape: int) -> Tensor:
        drawn = torch.empty(shape, dtype=torch.float16).normal_(0.0, self._spread, generator=self._weights)
        if self._strangeness:
            drawn += torch.empty_like(drawn).normal_(0.0, self._spread * self._strangeness, generator=self._noise)
        return drawn


def _parts(model: Llama, dice: _Dice) -> Iterator[Tensors]:
    rows, hidden = model.kv_heads * model.head_dim, model.hidden
    yield {"model.embed_tokens.weight": dice.weight(model.vocab_size, hidden)}
    for layer in range(model.layers):
        tensors = {
            "self_attn.q_proj": dice.weight(hidden, hidden),
            "self_attn.k_proj": dice.weight(rows, hidden),
            "self_attn.v_proj": dice.weight(rows, hidden),
            "self_attn.o_proj": dice.weight(hidden, hidden),
            "mlp.gate_proj": dice.weight(model.intermediate, hidden),
            "mlp.up_proj": dice.weight(model.intermediate, hidden),
            "mlp.down_proj": dice.weight(hidden, model.intermediate),
            "input_layernorm": dice.norm(hidden),
            "post_attention_layernorm": dice.norm(hidden),
        }
        yield {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in tensors.items()}
    last = {"model.norm.weight": dice.norm(hidden)}
    if not model.tied:
        last["lm_head.weight"] = dice.weight(model.vocab_size, hidden)
    yield last


def _tokenizer() -> PreTrainedTokenizerFast:
    """Ids beyond its words have no text, which does not matter: nothing here looks at text."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
