"""A pair of random checkpoints of a few hundred kilobytes, which can be built, tuned and killed in seconds."""

from __future__ import annotations

from pathlib import Path

from .good import PROMPTS

VOCAB = 288


def save_pair(folder: Path) -> tuple[Path, Path]:
    """Save both; returns the folders of target and draft. Needs torch and transformers."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    plain.train([str(PROMPTS / "prose.jsonl")], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    found = []
    for name, layers in (("target", 2), ("draft", 1)):
        torch.manual_seed(layers)
        sizes = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
        config = LlamaConfig(
            vocab_size=VOCAB,
            num_hidden_layers=layers,
            max_position_embeddings=128,
            initializer_range=0.2,
            bos_token_id=0,
            eos_token_id=1,
            **sizes,
        )
        LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        found.append(folder / name)
    return found[0], found[1]
