"""A Hugging Face checkpoint: found, checked and loaded, with errors that say what is wrong with it."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ...bundle import ELEMENT_BYTES, Precision, sha256
from ...calibration.weights.experts import stack_experts
from ...calibration.weights.layers import check_finite
from ...errors import CheckpointError, UnsupportedModelError
from ...runtime.hub import hub_reason
from .beyond_vocabulary import notes_of_beyond
from .half_precision import TORCH_DTYPES
from .own_code import note_of_own_code, refuse_own_code
from .source import check_folder, find_local, first_line, is_gguf
from .states import keeps_states_alone

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
UNWANTED = ["consolidated*", "*/*.safetensors"]  # the same weights again, in forms that transformers does not load
WEIGHTS = "model.safetensors"
GENERATION = "generation_config.json"
INDEX = "model.safetensors.index.json"
# Forms of weights that transformers' kernels for GPUs read, as the checkpoints of gpt-oss and DeepSeek-V3 have them.
PACKED = ("mxfp4", "fp8")


@dataclass(frozen=True)
class Checkpoint:
    """A local folder with `config.json`, a tokenizer and safetensors weights; `source` is what the user typed.

    kept: ids that its output layer keeps in the graphs, in rising order; None for all.
    """

    source: str
    folder: Path
    kept: tuple[int, ...] | None = field(default=None, kw_only=True)

    @classmethod
    def find(cls, source: str) -> Checkpoint:
        """A local folder or GGUF file, or else a hub id, which is downloaded. Raises `CheckpointError`."""
        from .gguf import find_gguf  # which derives from this class

        disable_progress_bar()  # the build shows its own
        set_verbosity_error()
        if is_gguf(source):
            return find_gguf(source)
        folder = find_local(source)
        if folder is None:
            folder = download(source)
            check_folder(source, folder)
        return cls(source, folder)

    @cached_property
    def config(self) -> Any:
        refuse_own_code(self.source, self.folder)
        try:
            config = AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # transformers raises ValueError, KeyError, OSError and its own
            raise CheckpointError(f"{self.source}: config.json cannot be used: {first_line(error)}") from None
        check_decoder(self.source, config)
        return config

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about a checkpoint that can be built."""
        note = note_of_own_code(self.source, self.folder, self.config.model_type)
        return ((note,) if note else ()) + tuple(notes_of_beyond(self))

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
    def vocab_size(self) -> int:
        """How many tokens the model has embeddings of; 0 where its config does not say."""
        return int(getattr(self.config.get_text_config(), "vocab_size", 0) or 0)

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the checkpoint's positions allow, where its config says."""
        text = self.config.get_text_config()
        # Beyond this length the long factors would hold for the cached rows too, which were made with the short ones.
        switches: list[int] = [
            rope["original_max_position_embeddings"] for rope in _rotary(text) if rope.get("rope_type") == "longrope"
        ]
        # Within one chunk, attention that ends at its borders sees all that comes before.
        if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
            switches.append(text.attention_chunk_size)
        if switches:
            return min(switches)
        for name in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"):
            value = getattr(text, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return None

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        """The files that transformers loads: the single one, or the shards of the index. Raises `CheckpointError`."""
        if (self.folder / WEIGHTS).is_file():
            return (self.folder / WEIGHTS,)
        index = self.folder / INDEX
        if not index.is_file():
            return tuple(sorted(self.folder.glob("*.safetensors")))
        try:
            files = sorted({self.folder / name for name in json.loads(index.read_bytes())["weight_map"].values()})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index} cannot be used: {first_line(error)}") from None
        for path in files:
            if not path.is_file():
                raise CheckpointError(f"{path} is missing; the checkpoint is incomplete, download it again")
        return tuple(files)

    @cached_property
    def fp32_bytes(self) -> int:
        """Size of the weights in fp32, from the headers of their files. Raises `CheckpointError` for damaged ones."""
        elements = 0
        for path in self.weights:
            try:
                with safe_open(path, "pt") as file:
                    elements += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
            except SafetensorError as error:
                raise CheckpointError(f"{path} is damaged: {error}") from None
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
        return 4 * elements

    def weight_bytes(self, precision: Precision) -> int:
        return self.fp32_bytes * ELEMENT_BYTES[precision] // ELEMENT_BYTES["fp32"]

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """End-of-text ids of the tokenizer, the config and the generation config. Raises `CheckpointError`."""
        found = self._named_ends()
        return tuple(sorted({token for place, value in found.items() for token in self._ids(place, value)}))

    def _named_ends(self) -> dict[str, Any]:
        """What names tokens that end a text, and what it says."""
        found = {
            "config.json": getattr(self.config.get_text_config(), "eos_token_id", None),
            "the tokenizer": self.tokenizer.eos_token_id,
        }
        if (self.folder / GENERATION).is_file():
            try:
                found[GENERATION] = GenerationConfig.from_pretrained(self.folder).eos_token_id
            except Exception as error:
                raise CheckpointError(f"{self.source}: {GENERATION} cannot be used: {first_line(error)}") from None
        return found

    def _ids(self, place: str, value: Any) -> list[int]:
        ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
        if not all(type(token) is int for token in ids):
            raise CheckpointError(
                f"{self.source}: {place} has the eos_token_id {value!r}; expected a token id or a list of them"
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
        """The model in `precision` for inference. Raises `CheckpointError` for missing or unreadable weights."""
        options: dict[str, Any] = dict(config=self.config, dtype=TORCH_DTYPES[precision], output_loading_info=True)
        options |= dict(experts_implementation="batched_mm", use_safetensors=True, trust_remote_code=False)
        try:
            model, info = AutoModelForCausalLM.from_pretrained(self.folder, **options)
        except Exception as error:
            raise CheckpointError(f"{self.source}: the weights cannot be loaded: {first_line(error)}") from None
        return for_inference(self.source, model, info)


def for_inference(source: str, model: PreTrainedModel, info: dict[str, Any]) -> PreTrainedModel:
    """info: what `from_pretrained` says of the loading.

    Raises `CheckpointError` for weights that were not there, or are no numbers.
    """
    missing = sorted(info["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{source}: {len(missing)} weights are missing, the first is {missing[0]}; the checkpoint is "
            "incomplete, download it again"
        )
    try:
        check_finite(model)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from None
    stack_experts(model)
    model.eval()
    model.requires_grad_(False)
    return model


def download(source: str, wanted: list[str] = WANTED) -> Path:
    """The folder of a hub id, with the files that `wanted` names. Raises `CheckpointError`."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=wanted, ignore_patterns=UNWANTED))
    except Exception as error:  # network, permission and name errors, each of another type
        raise CheckpointError(
            f"{source} is no folder here, and it could not be downloaded from the hub: {hub_reason(error)}; check "
            "the path or name"
        ) from None


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
    if any("dynamic" in str(rope.get("rope_type")) for rope in _rotary(config.get_text_config())):
        raise UnsupportedModelError(
            f"{source} changes its rotary frequencies with the sequence's length (rope_type dynamic), "
            "which cached rows cannot follow"
        )
    if keeps_states_alone(config):
        raise UnsupportedModelError(
            f"{source} has no layer that attends, its layers keep states alone; expected at "
            "least one with keys and values: choose a hybrid that has some, or a transformer"
        )


def _rotary(config: Any) -> list[dict[str, Any]]:
    """The rotary embeddings' parameters: one set, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]
