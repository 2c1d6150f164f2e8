"""Whatever cannot be built is refused in one line that names the checkpoint and the reason."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from specexport.errors import CheckpointError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.tracing.trace import probe_cache, trace
from support.hybrids import SCAN
from support.pair import Pair
from support.refusals import refused
from support.tiny import CONTRACT, LLAMA, edit_json, export, save_model, shard
from transformers import AutoConfig, AutoModelForCausalLM


@pytest.fixture
def folder(pair: Pair, tmp_path: Path) -> Path:
    """A copy of the target, to be harmed."""
    return Path(shutil.copytree(pair.target, tmp_path / "checkpoint"))


def refusal(folder: Path | str, kind: type[CheckpointError] = CheckpointError) -> str:
    """What the check of the pair and the export say about this checkpoint."""

    def use() -> None:
        checkpoint = find_checkpoint(str(folder))
        assert checkpoint.config is not None
        assert checkpoint.tokenizer is not None
        probe_cache(checkpoint.load("fp32"))

    with pytest.raises(kind) as caught:
        use()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("source", ["~nosuch/x", "x" * 300])
def test_a_name_that_cannot_be_looked_up(source: str) -> None:
    assert refusal(source).startswith(f"{source} cannot be looked up: ")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '"llama"', "{}", '{"model_type": "no_such_model"}', '{"model_type": 3}']
)
def test_a_broken_config(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    assert refusal(folder).startswith(f"{folder}: config.json cannot be used: ")


OWN = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}


@pytest.mark.parametrize(
    "changes", [dict(model_type="own"), dict(architectures=["OwnForCausalLM"])], ids=["model type", "architecture"]
)
def test_a_checkpoint_that_only_its_own_code_can_load(changes: dict[str, Any], folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit('ran')")
    edit_json(folder / "config.json", auto_map=OWN, **changes)
    assert str(folder) in refusal(folder)


def test_a_checkpoint_of_a_known_architecture_says_that_its_code_is_not_run(folder: Path) -> None:
    """transformers has the architecture itself, and takes its own class without a word."""
    (folder / "modeling_own.py").write_text("raise SystemExit('ran')")
    edit_json(folder / "config.json", auto_map=OWN)
    (warning,) = find_checkpoint(str(folder)).warnings
    assert all(fact in warning for fact in (str(folder), "modeling_own.OwnForCausalLM", "transformers' llama"))


def test_missing_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal(folder).endswith(
        "1 weights are missing, the first is model.layers.1.mlp.up_proj.weight; the checkpoint is incomplete, "
        "export or download it again"
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers(value: float, folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][3] = value
    save_file(weights, path, {"format": "pt"})
    assert refusal(folder) == (
        f"{folder}: model.norm.weight: 1 of its 32 weights are NaN or infinite, expected finite ones; "
        "export or download the checkpoint again"
    )


@pytest.mark.parametrize("sharded", [False, True])
def test_only_the_weights_that_are_loaded_count(sharded: bool, folder: Path) -> None:
    names = shard(folder) if sharded else ["model.safetensors"]
    before = find_checkpoint(str(folder))
    assert before.fp32_bytes > 0
    assert before.digest
    save_file({"more": torch.zeros(8)}, folder / "consolidated.safetensors")
    after = find_checkpoint(str(folder))
    assert [path.name for path in after.weights] == names
    assert (after.fp32_bytes, after.digest) == (before.fp32_bytes, before.digest)
    assert after.load("fp32") is not None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_build_loads_what_it_computes_in_whatever_the_checkpoint_is_stored_in(
    key: str, dtype: str, folder: Path
) -> None:
    """The key's name changed with transformers 5. Shards are read as one file is."""
    weights = load_file(folder / "model.safetensors")
    stored = {name: weight.to(getattr(torch, dtype)) for name, weight in weights.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("dtype", None)
    (folder / "config.json").write_text(json.dumps(config | {key: dtype}))
    shard(folder)
    loaded = dict(find_checkpoint(str(folder)).load("fp32").named_parameters())
    for name, parameter in loaded.items():
        assert parameter.dtype == torch.float32, name
        assert torch.equal(parameter, stored[name].float()), name
    assert len(loaded) == len(stored)


def test_weights_in_another_form_are_not_downloaded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    given: dict[str, Any] = {}

    def download(source: str, **options: Any) -> str:
        given.update(options)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_checkpoint("some/model").folder == folder
    offered = [
        "config.json",
        "consolidated.safetensors",
        "consolidated-1.safetensors",
        "model.safetensors",
        "onnx/model.safetensors",
        "x.bin",
    ]
    wanted = filter_repo_objects(
        offered, allow_patterns=given["allow_patterns"], ignore_patterns=given["ignore_patterns"]
    )
    assert list(wanted) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("value", ["</s>", [1, "2"], 1.5, True])
def test_stop_tokens_that_are_no_ids(value: object, folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=value)
    with refused(CheckpointError, "generation_config.json", field="eos_token_id"):
        find_checkpoint(str(folder)).stop_token_ids  # noqa: B018


def test_a_slow_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CanineTokenizer"}))
    assert refusal(folder) == f"{folder}: CanineTokenizer has no tokenizer.json form, which the runtime needs"


T5 = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)


@pytest.mark.parametrize(
    ("auto", "model_type", "config", "reason"),
    [
        ("AutoModelForMaskedLM", "bert", SMALL, "is a BertForMaskedLM, not a causal language model"),
        (
            "AutoModelForSequenceClassification",
            "llama",
            LLAMA,
            "is a LlamaForSequenceClassification, not a causal language model",
        ),
        ("AutoModel", "llama", LLAMA, "is a LlamaModel, not a causal language model"),
        ("AutoModelForSeq2SeqLM", "t5", T5, "is an encoder-decoder model"),
    ],
)
def test_no_causal_language_model(
    auto: str, model_type: str, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    import transformers

    getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(model_type, **config)).save_pretrained(
        tmp_path
    )
    message = refusal(tmp_path, UnsupportedModelError)
    assert message.startswith(str(tmp_path))
    assert reason in message


BLOOM = dict(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)
FALCON = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
# Keeps the keys of an index beside its latent.
INDEXED = LLAMA | dict(num_key_value_heads=4, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=4)


INDEXED |= dict(q_lora_rank=16, first_k_dense_replace=2, index_n_heads=2, index_head_dim=16, index_topk=4)


DYNAMIC = LLAMA | dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0))


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("mamba", dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4)),
        ("bloom", BLOOM),
        ("falcon", FALCON | dict(alibi=True)),
        ("llama", DYNAMIC),
        ("roberta", SMALL | dict(is_decoder=True, pad_token_id=1, initializer_range=0.2)),
        ("deepseek_v32", INDEXED),
        ("git", SMALL | dict(vision_config=dict(num_hidden_layers=1, hidden_size=32, num_attention_heads=4))),
        ("zaya", LLAMA | dict(num_experts=2, num_experts_per_tok=1)),
        ("mamba2", dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8)),
        ("granitemoehybrid", SCAN | dict(layer_types=["mamba", "mamba"], num_local_experts=0)),
        ("lfm2", LLAMA | dict(layer_types=["conv", "conv"], block_auto_adjust_ff_dim=False)),
    ],
)
def test_a_model_that_cannot_keep_the_contract(model_type: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = save_model(tmp_path / "checkpoint", model_type, config=config)
    with refused(UnsupportedModelError) as caught:
        export(folder, tmp_path / "graphs", ("ort",), CONTRACT)
    assert "ForCausalLM" in str(caught.value) or str(folder) in str(caught.value)
    assert not (tmp_path / "graphs").exists()


def test_code_of_its_own_is_refused_before_a_trace_and_in_one_layer_by_it(tmp_path: Path) -> None:
    bloom = AutoModelForCausalLM.from_config(AutoConfig.for_model("bloom", **BLOOM)).eval()
    with refused(UnsupportedModelError, "BloomForCausalLM"):
        probe_cache(bloom)
    mixed = find_checkpoint(str(save_model(tmp_path, "llama", config=LLAMA))).load("fp32")
    layers: Any = mixed.model.layers
    layers[1].self_attn.config = deepcopy(mixed.config)  # whose attention stays as it is
    found = probe_cache(mixed)
    assert len(found) == 2
    with refused(UnsupportedModelError, "s own; expected transformers", "LlamaForCausalLM"):
        trace(mixed, found, "ort", CONTRACT)
