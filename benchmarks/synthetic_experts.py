"""Makes a checkpoint of a mixture of experts with random weights, to time builds of it.

By default it has 132 million parameters, and SmolLM2's vocabulary of 49 152 tokens.

    python benchmarks/synthetic_experts.py TOKENIZER FOLDER [--layers 8] [--experts 16] [--chosen 4] [--width 512]

TOKENIZER: a checkpoint folder, whose tokenizer is used. Then: specexport build --target FOLDER --precision int8, and
benchmarks/context.py times its passes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--chosen", type=int, default=4, help="experts per token")
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    if not (arguments.tokenizer / "tokenizer.json").is_file():
        parser.error(f"{arguments.tokenizer} has no tokenizer.json")
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=len(tokenizer),
        hidden_size=arguments.width,
        intermediate_size=arguments.width,
        moe_intermediate_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=arguments.experts,
        num_experts_per_tok=arguments.chosen,
        max_position_embeddings=4096,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)
    print(f"{arguments.folder}: {model.num_parameters() / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
