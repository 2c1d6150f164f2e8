"""How long a sequence can be whose rotary positions are scaled, and that its last rows are transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specexport
import torch
from specexport.exporter.build import build
from specexport.exporter.checkpoints.config import max_positions
from specexport.exporter.checkpoints.source import stated_positions
from specexport.exporter.options import BuildOptions
from support.tiny import LLAMA, VOCAB, save_checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

BASE = dict(rope_theta=10000.0)
LLAMA3 = BASE | dict(rope_type="llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0)
LONG = BASE | dict(rope_type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4)
YARN = BASE | dict(rope_type="yarn", factor=4.0)
LINEAR = BASE | dict(rope_type="linear", factor=2.0)
PLAIN = BASE | dict(rope_type="default")


@pytest.mark.parametrize(
    ("rope", "length", "expected"),
    [
        (PLAIN, 64, 64),
        (YARN | dict(original_max_position_embeddings=64), 64, 256),
        (YARN | dict(original_max_position_embeddings=64), 256, 256),  # the length has the factor
        (YARN | dict(original_max_position_embeddings=64), 300, 300),
        (YARN, 64, 256),
        (YARN | dict(factor=2.5), 64, 160),
        (YARN | dict(factor=None, original_max_position_embeddings=64), 256, 256),
        (LINEAR, 64, 128),
        (LLAMA3 | dict(original_max_position_embeddings=64), 128, 128),
        (LONG | dict(original_max_position_embeddings=64), 128, 64),
    ],
)
def test_the_end_of_the_positions(rope: dict[str, Any], length: int, expected: int) -> None:
    config = AutoConfig.for_model("llama", **LLAMA | dict(max_position_embeddings=length, rope_parameters=rope))
    assert max_positions(config) == expected
    stated = stated_positions(config.to_dict())
    assert stated is None or stated >= expected, "it refuses what can be built"


@pytest.mark.parametrize("text", [{}, {"text_config": "x"}, {"text_config": {"n_positions": 64}}])
def test_lengths_that_are_none_are_passed_over(text: dict[str, Any]) -> None:
    assert stated_positions({"max_position_embeddings": -1, "n_positions": 64} | text) == 64


@pytest.mark.parametrize(
    ("full", "sliding", "expected"), [(LINEAR, PLAIN, 64), (LINEAR, LINEAR, 128), (LINEAR, YARN, 128)]
)
def test_the_shortest_of_several_kinds_of_layers(full: dict[str, Any], sliding: dict[str, Any], expected: int) -> None:
    ropes = dict(full_attention=dict(full), sliding_attention=dict(sliding))
    types = ["sliding_attention", "full_attention"]
    config = AutoConfig.for_model(
        "gemma3_text", **LLAMA | dict(max_position_embeddings=64, rope_parameters=ropes, layer_types=types)
    )
    assert max_positions(config) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rope", "length"), [(YARN | dict(original_max_position_embeddings=64), 250), (LINEAR, 126)], ids=["yarn", "linear"]
)
def test_the_last_positions_are_those_of_transformers(rope: dict[str, Any], length: int, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", seed=2, max_position_embeddings=64, rope_parameters=rope)
    build(str(folder), None, tmp_path / "bundle", BuildOptions(max_seq_len=length, cache=tmp_path / "cache"))
    prompt = (np.arange(length - 16) * 7 % (VOCAB - 2) + 2).tolist()
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad(), specexport.load(tmp_path / "bundle", threads=1) as session:
        done = session.generate(prompt, max_new_tokens=16, stop_token_ids=(), logprobs=0)
        logits = model(torch.tensor([prompt + list(done.tokens)])).logits[0, len(prompt) - 1 : -1]
    assert len(done.tokens) == 16
    assert logits.argmax(-1).tolist() == list(done.tokens)
