"""GGUF files of small checkpoints of several architectures, with the keys that llama.cpp's converter writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from write_gguf import _add_tokenizer, add_value, finish

from support.tiny import LINES, make_tokenizer, save_model

ONE_LESS = ("gemma2", "gemma3", "nemotron")  # the files hold their norms plus one
TRANSPOSED = ("gpt2",)  # of which transformers keeps matrices as [input, output]


def save(folder: Path, model_type: str, config: dict[str, Any], seed: int = 6) -> Path:
    save_model(folder, model_type, seed=seed, config=config | dict(bos_token_id=0, eos_token_id=1, pad_token_id=1))
    make_tokenizer().save_pretrained(folder)
    return folder


def write(folder: Path, path: Path, architecture: str, keys: dict[str, Any]) -> Path:
    """The checkpoint in `folder` as one file. keys: of the header, those of the model without `architecture`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    writer = GGUFWriter(path, architecture)
    _add_tokenizer(writer, folder, config)
    for key, value in ({"block_count": layers} | keys).items():
        add_value(
            writer, key if key.startswith(("general.", "tokenizer.", "other.")) else f"{architecture}.{key}", value
        )
    names = get_tensor_name_map(next(arch for arch in MODEL_ARCH if MODEL_ARCH_NAMES[arch] == architecture), layers)
    for name, weight in _stacked(folder / "model.safetensors"):
        stem, _, suffix = name.rpartition(".")
        if architecture in ONE_LESS and name.endswith("norm.weight"):
            weight = weight + 1
        if architecture in TRANSPOSED and weight.ndim == 2 and ".h." in name:
            weight = np.ascontiguousarray(weight.T)
        called = names.get_name(stem)
        assert called is not None, name
        writer.add_tensor(f"{called}.{suffix}", weight)
    finish(writer)
    return path


def _stacked(path: Path) -> Iterator[tuple[str, Any]]:
    """The weights, with those of all experts in one and without dimensions of length 1."""
    experts: dict[str, list[Any]] = {}
    for name, tensor in load_file(path).items():
        weight = tensor.float().numpy().squeeze()
        if expert := re.fullmatch(r"(.*\.experts)\.\d+\.(.*)", name):
            experts.setdefault(f"{expert[1]}.{expert[2]}", []).append(weight)
        else:
            yield name, weight
    yield from ((name, np.stack(weights)) for name, weights in experts.items())


def sentencepiece_values(spaces: bool = True) -> dict[str, Any]:
    """The header's of a small SentencePiece vocabulary: pieces, bytes, tokens that are found whole. spaces: whether
    two spaces are such a token, as in Gemma."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    whole = {"<unk>": 2, "<s>": 3, "</s>": 3, "<|user|>": 3, "<|endoftext|>": 3} | ({"  ": 4} if spaces else {})
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    tokens = [*whole, *(f"<0x{byte:02X}>" for byte in range(256)), *(piece for piece, _ in pieces)]
    found: dict[str, Any] = {
        "tokens": tokens,
        "token_type": [*whole.values(), *[6] * 256, *[1] * len(pieces)],
        "scores": [*[0.0] * (len(whole) + 256), *(-float(rank) for _, rank in pieces)],
    }
    found |= dict(model="llama", pre="default", bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    return {f"tokenizer.ggml.{key}": value for key, value in found.items()}
