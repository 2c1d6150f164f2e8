"""A Hugging Face checkpoint: checked and loaded, with errors that say what is wrong with it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ...bundle import ELEMENT_BYTES, Defaults, HiddenDraftKind, Precision, sha256
from ...errors import CheckpointError, UnsupportedModelError
from ..weights.experts import stack_experts
from ..weights.layers import check_finite
from .config import keeps_states_alone, max_positions, rotary
from .generation_config import GENERATION, defaults_of, read_generation_config
from .half_precision import TORCH_DTYPES
from .left_out import check_all_read
from .source import find_weights, first_line, read_headers

# Forms of weights that transformers' kernels for GPUs read, as the checkpoints of gpt-oss and DeepSeek-V3 have them.
PACKED = ("mxfp4", "fp8")


@dataclass(frozen=True)
class Checkpoint:
    """A local folder with `config.json`, a tokenizer and safetensors weights; `source` is what the user typed."""

    source: str
    folder: Path

    @cached_property
    def config(self) -> Any:
        try:
            config = AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # transformers raises ValueError, KeyError, OSError and its own
            raise CheckpointError(f"{self.source}: config.json cannot be used: {first_line(error)}") from None
        check_decoder(self.source, config)
        return config

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about a checkpoint that can be built."""
        return (*self._note_of_code(), *self._note_of_tokens())

    def _note_of_code(self) -> Iterator[str]:
        """transformers has the architecture itself, and takes its own class without a word."""
        if named := getattr(self.config, "auto_map", None):
            yield (
                f"{self.source} brings code ({', '.join(map(str, named.values()))}), which is not run: it is built as "
                f"transformers' {self.config.model_type}, which may answer otherwise"
            )

    def check_tokens(self) -> None:
        """Raises `CheckpointError` where every prompt would have a token without an embedding."""
        tokens, size = self.tokenizer("a")["input_ids"], self.vocab_size
        if 0 < size <= max(tokens, default=0):
            raise CheckpointError(
                f"{self.source}: the tokenizer puts token {max(tokens)} into every text, and the model has {size} "
                "embeddings; resize them, or use the tokenizer that the model was trained with"
            )

    def _note_of_tokens(self) -> Iterator[str]:
        """As after adding tokens without resizing the embeddings."""
        size = self.vocab_size
        beyond = sorted((token, name) for name, token in self.tokenizer.get_vocab().items() if 0 < size <= token)
        if beyond:
            token, name = beyond[0]
            yield (
                f"{self.source}: the tokenizer has {len(beyond)} tokens beyond the model's {size} embeddings, the "
                f"first is {name!r} ({token}); prompts that contain one are refused, and a draft reads another instead"
            )

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:
            file = self.folder / "tokenizer.json"
            reason = first_line(error) if file.exists() else "there is no tokenizer.json"
            raise CheckpointError(
                f"{self.source}: the tokenizer cannot be loaded: {reason}; save it with save_pretrained"
            ) from None
        if not getattr(tokenizer, "is_fast", False):
            raise CheckpointError(
                f"{self.source}: {type(tokenizer).__name__} has no tokenizer.json form, which the runtime needs"
            )
        return tokenizer

    @property
    def architecture(self) -> str:
        return str((self.config.architectures or [type(self.config).__name__])[0])

    @property
    def kind(self) -> HiddenDraftKind | None:
        """Of a draft that reads the target."""
        return None

    @property
    def taps(self) -> tuple[int, ...]:
        """Which hidden states of the target the model reads, as `exporter/hidden_drafts/base.py` has them."""
        return ()

    def own_parameters(self, model: PreTrainedModel) -> int:
        """How many the loaded `model` has, without those that a draft which reads its target copies from it."""
        return int(model.num_parameters())

    @property
    def loaded_beside(self) -> int:
        """How many weights are in memory beside its own once it is loaded: the target's, of one that reads it."""
        return 0

    @property
    def kept_tokens(self) -> NDArray[np.int64] | None:
        """The target's ids `[m]` of what such a draft proposes; None for all of them."""
        return None

    @property
    def vocab_size(self) -> int:
        """How many tokens the model has embeddings of; 0 where its config does not say."""
        return int(getattr(self.config.get_text_config(), "vocab_size", 0) or 0)

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the checkpoint's positions allow, where its config says."""
        return max_positions(self.config)

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        """The files that transformers loads: the single one, or the shards of the index. Raises `CheckpointError`."""
        return find_weights(self.source, self.folder)

    @cached_property
    def fp32_bytes(self) -> int:
        """Size of the weights in fp32. Raises `CheckpointError` for damaged files."""
        return 4 * sum(math.prod(shape) for _, shape in read_headers(self.weights).values())

    def weight_bytes(self, precision: Precision) -> int:
        return self.fp32_bytes * ELEMENT_BYTES[precision] // ELEMENT_BYTES["fp32"]

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """End-of-text ids of the tokenizer, the config and the generation config. Raises `CheckpointError`."""
        ends = self._named_ends()
        return tuple(sorted({token for place, value in ends.items() for token in self._ids(place, value)}))

    def _named_ends(self) -> dict[str, Any]:
        """What names tokens that end a text, and what it says."""
        return {
            "config.json": getattr(self.config.get_text_config(), "eos_token_id", None),
            "the tokenizer": self.tokenizer.eos_token_id,
            GENERATION: read_generation_config(self.source, self.folder).get("eos_token_id"),
        }

    @cached_property
    def defaults(self) -> Defaults:
        """What requests have that do not say. Raises `CheckpointError`."""
        return defaults_of(self.source, read_generation_config(self.source, self.folder))

    def _ids(self, place: str, value: Any) -> list[int]:
        ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
        if not all(type(token) is int for token in ids):
            raise CheckpointError(
                f"{self.source}: {place} has the eos_token_id {value!r}; expected a token id or a list of them",
                "eos_token_id",
            )
        return list(ids)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the config and the weights: what the graphs depend on."""
        try:
            lines = [f"{sha256(path)} {path.name}" for path in self._described]
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or self.source} cannot be read: {error.strerror or error}"
            ) from None
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def _described(self) -> tuple[Path, ...]:
        """The files that the graphs depend on."""
        return (self.folder / "config.json", *self.weights)

    def load(self, precision: Precision) -> PreTrainedModel:
        """The model in `precision` for inference. Raises `CheckpointError` for weights that are missing, unreadable, of
        another shape, or no part of the model.
        """
        return self.load_noted(precision)[0]

    def load_noted(self, precision: Precision) -> tuple[PreTrainedModel, tuple[str, ...]]:
        """The same, and notes of the weights that were left out."""
        model, info = self._load(precision, use_safetensors=True)
        notes = check_all_read(self.source, model, self.config, info, self.weights)
        return for_inference(self.source, model, info), notes

    def _load(self, precision: Precision, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        """And what transformers says of the loading. Raises `CheckpointError`."""
        options |= dict(config=self.config, dtype=TORCH_DTYPES[precision], experts_implementation="batched_mm")
        options |= dict(output_loading_info=True, trust_remote_code=False)
        # Refused by the caller: transformers' error does not name them.
        options["ignore_mismatched_sizes"] = True
        try:
            model, info = AutoModelForCausalLM.from_pretrained(self.folder, **options)
        except Exception as error:
            raise CheckpointError(f"{self.source}: the weights cannot be loaded: {first_line(error)}") from None
        return model, info


def for_inference(source: str, model: PreTrainedModel, info: dict[str, Any]) -> PreTrainedModel:
    """info: what `from_pretrained` says of the loading.

    Raises `CheckpointError` for weights that were not there, or are no numbers.
    """
    missing = sorted(info["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{source}: {len(missing)} weights are missing, the first is {missing[0]}; the checkpoint is "
            "incomplete, export or download it again"
        )
    try:
        check_finite(model)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from None
    stack_experts(model)
    model.eval()
    model.requires_grad_(False)
    return model


def check_decoder(source: str, config: Any) -> None:
    """Refuse a checkpoint whose own metadata shows that it is not a causal language model that can be built."""
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    names = config.architectures or []
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{source} is an encoder-decoder model ({config.model_type}); a causal language model is needed"
        )
    # transformers loads the text part of such a checkpoint, and the weights of the others are not read.
    multimodal = hasattr(config, "text_config") and any(name.endswith("ForConditionalGeneration") for name in names)
    if names and not known & set(names) and not multimodal:
        raise UnsupportedModelError(
            f"{source} is a {names[0]}, not a causal language model (AutoModelForCausalLM loads no such class)"
        )
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedModelError(
            f"{source} has the model type {config.model_type}, which AutoModelForCausalLM does not load"
        )
    stored = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    if stored in PACKED:
        raise UnsupportedModelError(
            f"{source} stores its weights in {stored}; expected bf16, fp16 or fp32: load it in transformers with "
            "dequantize=True, save that, and choose the bundle's own --precision"
        )
    if any("dynamic" in str(rope.get("rope_type")) for rope in rotary(config.get_text_config())):
        raise UnsupportedModelError(
            f"{source} changes its rotary frequencies with the sequence's length (rope_type dynamic), "
            "which cached rows cannot follow"
        )
    if keeps_states_alone(config):
        raise UnsupportedModelError(
            f"{source} has no layer that attends, its layers keep states alone; expected at "
            "least one with keys and values: choose a hybrid that has some, or a transformer"
        )
