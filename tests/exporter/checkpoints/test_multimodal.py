"""A multimodal checkpoint is its text part: published Qwen3.5 models are of this form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from specexport.errors import UnsupportedModelError
from specexport.exporter.checkpoints.checkpoint import check_decoder
from specexport.exporter.checkpoints.find import find_checkpoint
from support.tiny import LLAMA, make_tokenizer
from transformers import LlavaConfig, Qwen3_5Config, Qwen3_5ForConditionalGeneration

ROPE = dict(
    rope_type="default",
    rope_theta=10000.0,
    partial_rotary_factor=0.5,
    mrope_section=[2, 1, 1],
    mrope_interleaved=True,
)
TEXT = LLAMA | dict(
    head_dim=16,
    layer_types=["linear_attention", "full_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    rope_parameters=ROPE,
)
VISION = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=32, patch_size=4)


def test_the_text_part_gives_the_logits_of_the_whole_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=TEXT, vision_config=VISION)).eval()
    whole.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    text = find_checkpoint(str(tmp_path)).load("fp32")
    assert type(text).__name__ == "Qwen3_5ForCausalLM"
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        torch.testing.assert_close(text(tokens).logits, whole(tokens).logits)


def test_one_whose_text_part_nobody_loads_alone_is_refused() -> None:
    config = LlavaConfig(architectures=["LlavaForConditionalGeneration"])
    with pytest.raises(UnsupportedModelError, match="m has the model type llava, which AutoModelForCausalLM does not"):
        check_decoder("m", config)
