"""Makes random checkpoints without a hub; of Llama's shape with only a few layers in memory at a time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from .llama import Hybrid, Llama

WORDS = ["<s>", "</s>", *"abcdefghijklmn"]
MAX_AT_ONCE = 8  # parts that are drawn in parallel: a layer of an 8B model takes 4 s on one core
Tensors = dict[str, Tensor]


def write_checkpoint(folder: Path, model: Llama, seed: int, strangeness: float = 0.0) -> None:
    """Write weights in fp16, one file per layer, and a tokenizer of 16 words.

    strangeness: how much the weights differ from those of the same model and seed with strangeness 0, in units of their
    spread. A draft that differs a little from its target is accepted now and then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, Hybrid):
        _write_hybrid(folder, model, seed, strangeness)
        return

    def write(index: int) -> dict[str, int]:
        tensors = _part(model, index, _Dice(seed, index, model.spread, strangeness))
        save_file(tensors, folder / _file(index), metadata={"format": "pt"})
        return {name: tensor.nbytes for name, tensor in tensors.items()}

    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        parts = list(pool.map(write, range(model.layers + 2)))
    places = {name: _file(index) for index, part in enumerate(parts) for name in part}
    size = sum(sum(part.values()) for part in parts)
    index_file = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file), encoding="utf-8")
    _tokenizer().save_pretrained(folder)
    _config(model).save_pretrained(folder)  # last, as the sign that the checkpoint is complete


def _write_hybrid(folder: Path, model: Hybrid, seed: int, strangeness: float) -> None:
    config = Qwen3_5TextConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        layer_types=["linear_attention"] * (model.layers - 1) + ["full_attention"],
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        linear_num_key_heads=model.kv_heads,
        linear_num_value_heads=model.heads,
        linear_key_head_dim=model.state_dim,
        linear_value_head_dim=model.state_dim,
        max_position_embeddings=model.positions,
        tie_word_embeddings=model.tied,
        initializer_range=model.spread,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(seed)
    hybrid = Qwen3_5ForCausalLM(config)
    with torch.no_grad():
        for parameter in hybrid.parameters() if strangeness else ():
            parameter += strangeness * parameter.abs().mean() * torch.randn_like(parameter)
    _tokenizer().save_pretrained(folder)
    hybrid.half().save_pretrained(folder)


def _file(index: int) -> str:
    return f"model-{index:05d}.safetensors"


def _config(model: Llama) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=model.vocab_size,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.positions,
        tie_word_embeddings=model.tied,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=0,
        eos_token_id=1,
        dtype=torch.float16,
    )


class _Dice:
    """Random weights of one part, based on the same draws for the same seed, whatever the strangeness is."""

    def __init__(self, seed: int, part: int, spread: float, strangeness: float) -> None:
        self._weights, self._noise = (torch.Generator().manual_seed(2**20 * start + part) for start in (seed, -seed))
        self._spread, self._strangeness = spread, strangeness

    def weight(self, rows: int, columns: int) -> Tensor:
        return self._draw(rows, columns)

    def norm(self, size: int) -> Tensor:
        """A norm's weight, not all ones, so that a graph that leaves it out is noticed."""
        return self._draw(size).mul_(0.1 / self._spread).add_(1.0)

    def _draw(self, *shape: int) -> Tensor:
        drawn = torch.empty(shape, dtype=torch.float16).normal_(0.0, self._spread, generator=self._weights)
        if self._strangeness:
            drawn += torch.empty_like(drawn).normal_(0.0, self._spread * self._strangeness, generator=self._noise)
        return drawn


def _part(model: Llama, index: int, dice: _Dice) -> Tensors:
    """The tensors of part `index`: the embedding, then the layers, then the final norm and head."""
    rows, hidden = model.kv_heads * model.head_dim, model.hidden
    if index == 0:
        return {"model.embed_tokens.weight": dice.weight(model.vocab_size, hidden)}
    if index > model.layers:
        head = {} if model.tied else {"lm_head.weight": dice.weight(model.vocab_size, hidden)}
        return {"model.norm.weight": dice.norm(hidden)} | head
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
    return {f"model.layers.{index - 1}.{name}.weight": tensor for name, tensor in tensors.items()}


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of a few words. Other ids have no text, which does not matter, since no text is used here."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
