"""Tiny random checkpoints on disk, and their graphs without a whole build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import onnx
import onnx_ir as ir
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from specexport.bundle import CacheLayer, Contract, ModelSpec, Role
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.exporter import export_model
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.kernels.layouts import whole_vectors
from specexport.exporter.kernels.products import use_kernels
from specexport.exporter.passes.optimize import optimize, save
from specexport.exporter.proving.prove import record_reference, widened
from specexport.exporter.stage_cache import finished_stage, make_stage, stage_key
from specexport.exporter.tracing.trace import probe_cache, trace
from specexport.exporter.weights.recipe import Recipe
from specexport.runtime.proofs.parity import ReferenceStep, max_error
from specexport.user_cache import user_cache
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.onnx._internal.exporter._registration import ONNXRegistry
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

torch.set_num_threads(1)  # tiny matrices gain nothing from more
# Reading the sources of all operators takes a second of every export.
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))  # type: ignore[assignment,method-assign]

VOCAB = 288
CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
LINES = [
    "def add(a, b):\n    return a + b\n",
    "the quick brown fox jumps over the lazy dog\n",
    "for item in items:\n    print(item)\n",
]
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"

LLAMA: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.2,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)


def make_tokenizer(vocab_size: int = VOCAB, lines: list[str] = LINES) -> PreTrainedTokenizerFast:
    """Byte-level BPE with two special tokens in front of the bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(lines, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = CHAT
    return wrapped


def save_model(folder: Path, model_type: str = "llama", seed: int = 0, config: dict[str, Any] | None = None) -> Path:
    """A random model whose logits depend visibly on every position: large weights, norms not 1, biases not 0."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(LLAMA if config is None else config)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def save_checkpoint(
    folder: Path, seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None, **changes: Any
) -> Path:
    """A tiny Llama with its tokenizer; `changes` go over its config."""
    save_model(folder, seed=seed, config=LLAMA | changes)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shard(folder: Path) -> list[str]:
    """Split the weights into two files and an index; give the files' names."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, (list(weights)[::2], list(weights)[1::2]), strict=True):
        save_file({key: weights[key] for key in part}, folder / name, metadata={"format": "pt"})
    checkpoints = {key: names[index % 2] for index, key in enumerate(weights)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": checkpoints}))
    return names


def edit_weights(path: Path, **changes: torch.Tensor) -> None:
    """Put weights into a file, or in the place of others."""
    save_file(load_file(path) | changes, path, metadata={"format": "pt"})


@dataclass
class Exported:
    """Graphs of one checkpoint in `folder`, and what the Hugging Face model answers to the proof's schedule."""

    folder: Path
    spec: ModelSpec
    reference: list[ReferenceStep]
    contract: Contract
    num_parameters: int

    def decoder(self, dialect: Dialect) -> OrtDecoder:
        return OrtDecoder(self.folder / self.spec.graphs[dialect], self.spec, self.contract, dialect=dialect)

    def error(self, dialect: Dialect) -> float:
        """Of the graph as it is, or widened where ONNX Runtime cannot run it."""
        if self.contract.precision != "bf16":
            return max_error(self.decoder(dialect), self.reference)
        with widened(self.folder / self.spec.graphs[dialect]) as path:
            return max_error(
                OrtDecoder(path, self.spec, replace(self.contract, precision="fp32"), dialect=dialect), self.reference
            )


DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
# Those whose weights stay as the checkpoint has them.
AS_STORED: tuple[Dialect, ...] = ("onnx", "ort", "rows")
Layers = tuple[CacheLayer, ...]
Trace = Callable[[Path, PreTrainedModel, Layers, Dialect, Contract], ir.Model]


def layers_of(model: PreTrainedModel, dialects: tuple[Dialect, ...]) -> Layers:
    layers = probe_cache(model)
    return whole_vectors(layers) if "kernels" in dialects else layers


def trace_now(
    checkpoint: Path, model: PreTrainedModel, layers: Layers, dialect: Dialect, contract: Contract
) -> ir.Model:
    graph = trace(model, layers, dialect, contract)
    optimize(graph, dialect)
    if dialect == "kernels":
        use_kernels(graph, Recipe({}), contract.capacity)
    return graph


def trace_once(
    checkpoint: Path, model: PreTrainedModel, layers: Layers, dialect: Dialect, contract: Contract
) -> ir.Model:
    """The same from the stage cache, while checkpoint, exporter and packages are as they were."""
    key = stage_key(
        export_model.__file__,
        tests=hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        checkpoint=find_checkpoint(str(checkpoint)).digest,
        contract=asdict(contract),
        spans=contract.spans,  # of a constant that tests make smaller
        given=(dialect, [asdict(layer) for layer in layers]),
    )

    def write(stage: Path) -> None:
        onnx.save_model(ir.to_proto(trace_now(checkpoint, model, layers, dialect, contract)), stage / "graph.onnx")

    cache = user_cache()
    locks = cache.with_name("locks")
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / key):  # another worker may be at it
        stage = finished_stage(cache, key) or make_stage(cache, key, write)
        return ir.from_proto(onnx.load_model(stage / "graph.onnx"))


def traced(checkpoint: Path, dialect: Dialect = "ort", contract: Contract = CONTRACT) -> ir.Model:
    """The optimized graph of a checkpoint. Not for tests that patch the exporter."""
    model = find_checkpoint(str(checkpoint)).load(contract.precision)
    return trace_once(checkpoint, model, layers_of(model, (dialect,)), dialect, contract)


def export(
    checkpoint: Path,
    folder: Path,
    dialects: tuple[Dialect, ...] = DIALECTS,
    contract: Contract = CONTRACT,
    stem: str = "model",
    role: Role = "target",
    trace: Trace = trace_now,
) -> Exported:
    """Traced anew: what a test that patches the exporter needs. All others take `export_cached`."""
    model = find_checkpoint(str(checkpoint)).load(contract.precision)
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    layers = layers_of(model, dialects)
    reference = record_reference(model, contract, vocab_size, has_states=any(layer.states for layer in layers))
    graphs = {dialect: trace(checkpoint, model, layers, dialect, contract) for dialect in dialects}
    folder.mkdir(parents=True, exist_ok=True)
    paths, weights = save(graphs, folder, stem)
    name, size = type(model).__name__, model.num_parameters()
    spec = ModelSpec(str(checkpoint), name, "", size, vocab_size, layers, dict(paths), weights, "float", (), None)
    return Exported(folder, spec, reference, contract, model.num_parameters())


export_cached = partial(export, trace=trace_once)
