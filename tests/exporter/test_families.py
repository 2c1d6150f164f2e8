"""Many architectures, one exporter: both dialects against the Hugging Face model, and mutants that must not pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.errors import EngineError
from specexport.exporter import attention
from specexport.exporter.attention import DIALECTS, Dialect
from specexport.exporter.checkpoint import Checkpoint
from specexport.runtime.parity import TOLERANCE
from tiny import LLAMA, export, save_model

TOL = TOLERANCE["fp32"]
# Every window is shorter than the proof's schedule.
SLIDING = LLAMA | dict(sliding_window=8)
GEMMA = SLIDING | dict(head_dim=16, query_pre_attn_scalar=7)
MOE = LLAMA | dict(num_experts_per_tok=2)
GPT2 = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2, bos_token_id=0, eos_token_id=1)
OPT = dict(vocab_size=96, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, init_std=0.2)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "qwen2, a window in one layer": ("qwen2", SLIDING | dict(use_sliding_window=True, max_window_layers=1)),
    "mistral, sliding window": ("mistral", SLIDING),
    "gemma2, softcap": ("gemma2", GEMMA | dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gpt2, learned positions": ("gpt2", GPT2),
    "phi, partial rotary": ("phi", LLAMA | dict(partial_rotary_factor=0.5)),
    "mixtral": ("mixtral", MOE | dict(num_local_experts=4)),
}
MORE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3 rotary": ("llama", LLAMA | dict(rope_parameters=LLAMA3_ROPE | dict(original_max_position_embeddings=32))),
    "qwen3, QK norm": ("qwen3", LLAMA | dict(head_dim=16)),
    "gemma3": ("gemma3_text", GEMMA | dict(layer_types=["sliding_attention", "full_attention"])),
    "phi3": ("phi3", LLAMA),
    "gpt_neox": ("gpt_neox", LLAMA),
    "opt": ("opt", OPT),
    "cohere": ("cohere", LLAMA | dict(logit_scale=0.5)),
    "cohere2": ("cohere2", SLIDING | dict(logit_scale=0.5)),
    "olmo2": ("olmo2", LLAMA),
    "granite": ("granite", LLAMA | dict(attention_multiplier=0.3, embedding_multiplier=2.0, logits_scaling=1.5, residual_multiplier=0.7)),
    "stablelm": ("stablelm", LLAMA),
    "starcoder2": ("starcoder2", SLIDING),
    "gpt_bigcode, one key head": ("gpt_bigcode", GPT2),
    "smollm3": ("smollm3", LLAMA),
    "qwen2_moe": ("qwen2_moe", MOE | dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)),
    "qwen3_moe": ("qwen3_moe", MOE | dict(num_experts=4, moe_intermediate_size=16, head_dim=8)),
}


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FAMILIES)])
def test_both_dialects_give_the_logits_of_hugging_face(family: str, tmp_path: Path) -> None:
    model_type, config = (FAMILIES | MORE_FAMILIES)[family]
    exported = export(save_model(tmp_path / "checkpoint", model_type, config=config), tmp_path / "graphs")
    assert {dialect: exported.error(dialect) <= TOL / 10 for dialect in DIALECTS} == dict.fromkeys(DIALECTS, True)


MUTANTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no window": lambda call: call | dict(window=0),
    "a window of one more": lambda call: call | dict(window=call["window"] and call["window"] + 1),
    "no softcap": lambda call: call | dict(softcap=0.0),
    "a scale of its own": lambda call: call | dict(scale=call["query"].shape[-1] ** -0.5),
    "rows one too far": lambda call: call | dict(position=call["position"] + 1),
}


@pytest.mark.parametrize(("mutant", "dialect"), [*zip(MUTANTS, ["ort", "onnx", "ort", "onnx", "ort"], strict=True)])
def test_a_wrong_attention_fails_the_proof(mutant: str, dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit = attention.EMITTERS[dialect]
    names = ("query", "key", "value", "past", "position", "scale", "window", "softcap")

    def wrong(*given: Any) -> Any:
        return emit(**MUTANTS[mutant](dict(zip(names, given, strict=True))))

    monkeypatch.setitem(attention.EMITTERS, dialect, wrong)
    model_type, config = FAMILIES["gemma2, softcap"]
    exported = export(save_model(tmp_path / "checkpoint", model_type, config=config), tmp_path / "graphs", (dialect,))
    try:
        assert exported.error(dialect) > 10 * TOL
    except EngineError as error:  # a row beyond the capacity
        assert mutant == "rows one too far", error  # noqa: PT017


@pytest.mark.parametrize("ignored", [False, True])
def test_a_window_wider_than_the_first_steps_is_proved_too(ignored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit = attention.EMITTERS["ort"]
    if ignored:
        monkeypatch.setitem(attention.EMITTERS, "ort", lambda *given: emit(*given[:6], 0, *given[7:]))
    config = LLAMA | dict(sliding_window=600, max_position_embeddings=1024)
    contract = Contract(capacity=1024, max_draft_tokens=2, prompt_chunk=64, precision="fp32")
    exported = export(save_model(tmp_path / "checkpoint", "mistral", config=config), tmp_path / "graphs", ("ort",), contract)
    assert (exported.error("ort") > 10 * TOL) is ignored


def test_a_wrong_position_id_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2LMHeadModel

    forward = GPT2LMHeadModel.forward

    def shifted(self: GPT2LMHeadModel, position_ids: Any = None, **options: Any) -> Any:
        return forward(self, position_ids=None if position_ids is None else position_ids + 1, **options)

    monkeypatch.setattr(GPT2LMHeadModel, "forward", shifted)
    exported = export(save_model(tmp_path / "checkpoint", "gpt2", config=GPT2), tmp_path / "graphs", ("ort",))
    assert exported.error("ort") > 10 * TOL


def test_rotary_factors_that_switch_with_the_length_end_the_positions_there(tmp_path: Path) -> None:
    rope = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4, long_factor=[3.0] * 4)
    config = LLAMA | dict(original_max_position_embeddings=64, rope_parameters=rope | dict(original_max_position_embeddings=64))
    checkpoint = save_model(tmp_path / "checkpoint", "phi3", config=config)
    assert Checkpoint.find(str(checkpoint)).max_positions == 64
    assert export(checkpoint, tmp_path / "graphs", ("ort",)).error("ort") <= TOL / 10
