"""Writes a Llama checkpoint as one GGUF file, like llama.cpp's converter.

    python scripts/write_gguf.py CHECKPOINT FILE.gguf --kind Q5_1

Matrices are stored in `--kind`, one of those that the package `gguf` can write: F32, F16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from specexport.exporter.checkpoints.gguf_tokenizer import SPLITS, Split
from tokenizers import Tokenizer

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
# Tells the splits in `SPLITS` apart. llama.cpp knows no case beyond ASCII, and leaves marks out of some splits that had
# them where it found them, so those decide only between splits that are equal otherwise.
MARKS = "a\u0301b \u0915\u094d\u0937 "
PROBE = (
    "I'll don'T it'so\n\n\n1. x = 12345.67e8 \r\n\tHTTPServer fooBar's =>== $a_b `c` |\n (x) //\n/ "
    "\u4f60\u597d\u3042\u30a2 \u0e01 \u00bd\u00b2 1 2\t\t3    4 \n \n  --\n...!?\u3002,a 'a \u20ac5 foo  \n\nb \uac00 "
)
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    checkpoint: Path,
    path: Path,
    kind: str = "F32",
    tokenizer: bool = True,
    extra: dict[str, NDArray[np.float32]] | None = None,
    values: dict[str, str] | None = None,
) -> Path:
    """Write the Llama in the folder `checkpoint` as one file, with its matrices in `kind`; returns the file's path.

    tokenizer: whether the checkpoint has one. extra: additional tensors, by name. values: additional entries of the
    header; `general.architecture` is `llama` by default.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    values = dict(values or {})
    writer = GGUFWriter(path, values.pop("general.architecture", "llama"))
    writer.add_name(path.stem)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    for key, value in values.items():
        writer.add_string(key, value)
    if tokenizer:
        _add_tokenizer(writer, checkpoint, config)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        weight, called = tensor.float().numpy(), _gguf_name(name)
        part = called.split(".")[-2]
        if part in heads:
            weight = _interleaved(weight, heads[part])
        _add(writer, called, weight, kind if weight.ndim == 2 else "F32")
    for name, weight in (extra or {}).items():
        _add(writer, name, weight, "F32")
    finish(writer)
    return path


def add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    """An entry of the header, with GGUF's type for one of Python's."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, name: str, weight: NDArray[np.float32], kind: str) -> None:
    form = GGMLQuantizationType[kind]
    writer.add_tensor(name, quantize(weight, form), raw_dtype=form)


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in ENDS:
        return f"{ENDS[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{suffix}"


def _interleaved(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """The weight with its rotary halves interleaved, which is llama.cpp's order."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def split_of(tokenizer: Tokenizer) -> str:
    """The name in GGUF of how a byte-level tokenizer splits text, by what it does with `PROBE`."""
    whole_words = bool(getattr(tokenizer.model, "ignore_merges", False))
    found = [
        name
        for name, split in SPLITS.items()
        if split.whole_words == whole_words and _pieces(split, PROBE) == _pieces(tokenizer, PROBE)
    ]
    if found:
        return next((name for name in found if _pieces(SPLITS[name], MARKS) == _pieces(tokenizer, MARKS)), found[0])
    raise SystemExit(
        f"the tokenizer splits text in a way that has no name in GGUF; known are {', '.join(sorted(SPLITS))}"
    )


def _pieces(splitting: Split | Tokenizer, text: str) -> list[str] | None:
    found = splitting.pre_tokenizer
    return None if found is None else [piece for piece, _ in found.pre_tokenize_str(text)]


def adds_bos(checkpoint: Path, bos: int) -> bool:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode("a").ids[:1] == [bos]


def _add_tokenizer(writer: Any, checkpoint: Path, config: dict[str, Any]) -> None:
    content = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    special = {entry["content"]: entry["id"] for entry in content["added_tokens"] if entry["special"]}
    vocabulary = sorted((special | content["model"]["vocab"]).items(), key=lambda entry: entry[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split_of(Tokenizer.from_str(json.dumps(content))))
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])  # CONTROL, NORMAL
    writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(adds_bos(checkpoint, config["bos_token_id"]))
    paths = {"default": checkpoint / "chat_template.jinja"}
    paths |= {path.stem: path for path in sorted(checkpoint.glob("additional_chat_templates/*.jinja"))}
    found = {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}
    if found:
        writer.add_chat_template([dict(name=name, template=template) for name, template in found.items()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", default="Q8_0")
    arguments = parser.parse_args()
    print(write_gguf(arguments.checkpoint, arguments.file, arguments.kind))
