"""A GGUF file as a checkpoint: transformers' own loader turns it into a model in floats, with its tokenizer.

What that loader cannot read, or would leave out, is refused by the name that GGUF has for it. The format is that of the
GGUF specification (docs/gguf.md of the ggml repository), whose header the package `gguf` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    modeling_gguf_pytorch_utils,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ...bundle import Defaults, Precision
from ...errors import CheckpointError, SpecExportError, UnsupportedModelError
from .checkpoint import Checkpoint, check_decoder, for_inference
from .gguf_keys import apply_header
from .gguf_tokenizer import SUPPORTED_TOKENIZERS, read_tokenizer
from .left_out import check_shapes
from .source import INSTEAD, first_line

# Tokens that end a text, a turn or a message.
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# Divisors of the rotary frequencies, by which Llama 3.1 and later stretch their positions. transformers does not read
# them.
ROTARY_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True)
class GgufCheckpoint(Checkpoint):
    """`folder` is the one that holds `file`."""

    file: str

    @property
    def path(self) -> Path:
        return self.folder / self.file

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._note_of_tokens())

    @property
    def defaults(self) -> Defaults:
        return Defaults()

    @cached_property
    def header(self) -> Any:
        """A `gguf.GGUFReader` over the file. Raises `CheckpointError`."""
        from gguf import GGUFReader

        try:
            return GGUFReader(self.path)
        except Exception as error:  # a file cut off ends in errors of numpy and struct
            raise CheckpointError(
                f"{self.source} cannot be read ({first_line(error)}): it is damaged or incomplete, or newer than the "
                f"package gguf; download the file again, or {INSTEAD}"
            ) from None

    @cached_property
    def config(self) -> Any:
        kind = self.values.get("general.architecture")
        try:
            with self._quick_loader():
                config = AutoConfig.from_pretrained(self.folder, gguf_file=self.file, trust_remote_code=False)
        except Exception as error:
            raise UnsupportedModelError(
                f"{self.source} is a {kind} model, whose GGUF files transformers cannot read ({first_line(error)}); "
                f"{INSTEAD}"
            ) from None
        check_decoder(self.source, config)
        try:
            apply_header(self.source, self.values, config, self._read_by_name())
        except SpecExportError:
            raise
        except Exception as error:  # values of another type, or a config of layers that differ, as Gemma 4's
            raise UnsupportedModelError(
                f"{self.source} is a {kind} model, whose header does not fit {type(config).__name__} of transformers "
                f"({first_line(error).partition('. ')[0]}); {INSTEAD}"
            ) from None
        return config

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        if "tokenizer.ggml.tokens" not in self.values:
            raise CheckpointError(f"{self.source} has no tokenizer; give a GGUF file that has one")
        try:
            if self.values.get("tokenizer.ggml.model") in SUPPORTED_TOKENIZERS:
                return read_tokenizer(self.source, self.values)
            with self._quick_loader():
                tokenizer = AutoTokenizer.from_pretrained(self.folder, gguf_file=self.file, trust_remote_code=False)
        except SpecExportError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{self.source}: its tokenizer cannot be read ({first_line(error)}); {INSTEAD}"
            ) from None
        return tokenizer

    def _read_by_name(self) -> set[str]:
        """The keys that transformers' function for this architecture's config reads, where it has one."""
        architecture = self.values["general.architecture"]
        try:
            from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
        except ImportError:  # an older transformers
            return set()
        if architecture not in GGUF_CONFIG_ARCHS:
            return set()
        values = _KeyTrackingDict(self.values)
        GGUF_CONFIG_ARCHS[architecture](values, tuple(tensor.name for tensor in self.header.tensors))
        return values.read

    @property
    def architecture(self) -> str:
        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.config.model_type])

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        return (self.path,)

    @cached_property
    def fp32_bytes(self) -> int:
        return 4 * sum(int(tensor.n_elements) for tensor in self.header.tensors)

    @property
    def _described(self) -> tuple[Path, ...]:
        return self.weights

    def load_noted(self, precision: Precision) -> tuple[PreTrainedModel, tuple[str, ...]]:
        _ = self.config  # refused as such
        with self._quick_loader():
            model, info = self._load(precision, gguf_file=self.file)
        check_shapes(self.source, info, "its header")
        self._check_all_read(model)
        for tensor in self.header.tensors:
            if tensor.name == ROTARY_DIVISORS:
                _stretch(model, torch.from_numpy(np.array(tensor.data, np.float32)))
        return for_inference(self.source, model, info), ()

    @contextmanager
    def _quick_loader(self) -> Iterator[None]:
        """The loader parses the header again for each of configuration, tokenizer and weights, and makes the names of
        all tensors again for each module, seconds each: it gets ours. And it has a progress bar that no setting of
        transformers turns off; the build shows its own."""
        import gguf

        header, names = self.header, gguf.get_tensor_name_map
        reader, bar = gguf.GGUFReader, modeling_gguf_pytorch_utils.tqdm
        gguf.GGUFReader, gguf.get_tensor_name_map = lambda *_, **__: header, cache(names)
        modeling_gguf_pytorch_utils.tqdm = lambda items, **_: items
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = reader, names
            modeling_gguf_pytorch_utils.tqdm = bar

    def _check_all_read(self, model: PreTrainedModel) -> None:
        """Raises `UnsupportedModelError` where the loader left weights out: it does so silently."""
        there = sum(int(tensor.n_elements) for tensor in self.header.tensors if tensor.name != ROTARY_DIVISORS)
        read = model.num_parameters()
        if there != read:
            raise UnsupportedModelError(
                f"{self.source} has {there} weights, transformers makes a model of {read} of them; {INSTEAD}"
            )

    def _named_ends(self) -> dict[str, Any]:
        model = {"the model": self.config.get_text_config().eos_token_id, "the tokenizer": self.tokenizer.eos_token_id}
        return model | {key: self.values.get(key) for key in ENDS}

    @cached_property
    def values(self) -> dict[str, Any]:
        """What the header says, by key."""
        return {key: field.contents() for key, field in self.header.fields.items()}


class _KeyTrackingDict(dict[str, Any]):
    """Keeps the keys that were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _stretch(model: PreTrainedModel, divisors: torch.Tensor) -> None:
    """Divide the rotary frequencies, as llama.cpp does with these."""
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if isinstance(frequencies, torch.Tensor):
            module.inv_freq = frequencies / divisors
