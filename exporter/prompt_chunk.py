"""How many rows a pass of a mixture may have: its expert products copy a weight for each row and each expert it uses.

An engine picks the weights [rows times experts of a row, N, K] of one product at once, and multiplies them then. A row
copies as much in a narrow pass as in a wide one, so wide passes bring such products nothing and take memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ..bundle import ELEMENT_BYTES, Role
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.memory_check import require_memory_for_copied
from .options import BuildOptions
from .precision import AUTO
from .weights.experts import bare_stacks

# Of what one product copies in a pass, if no chunk is asked for: about a third of what Python with torch takes at a
# build. Chosen for memory: at 64 rows and at 128 of the mixture in docs/quantization.md, prompts took as long.
MOST_BYTES = 1 << 28


def prompt_chunk(models: Mapping[Role, Checkpoint], options: BuildOptions) -> int:
    """Tokens per prefill pass: the requested number, else as many of the default as every model's copies allow.

    Never fewer than a verification pass has.
    """
    if options.prompt_chunk is not None:
        return options.prompt_chunk
    chunk = options.chunk
    for role, model in models.items():
        copied = copied_weights(model.config) * _element_bytes(options, role)
        chunk = min(chunk, max(MOST_BYTES // copied, options.max_draft_tokens + 1)) if copied else chunk
    return chunk


def require_memory_for_copies(models: Mapping[Role, Checkpoint], options: BuildOptions, rows: int) -> None:
    """Raises `OutputError` where the copies of a pass of so many rows, as the proof runs it, do not fit into memory."""
    for role, model in models.items():
        copied = copied_weights(model.config) * _element_bytes(options, role)
        if copied:
            require_memory_for_copied(copied * rows, rows)


def copied_weights(config: Any) -> int:
    """Weights that a row copies for the largest product of experts; 0 for a model without stacks.

    config: the checkpoint's. The model is built without memory for its weights.
    """
    chosen = getattr(config.get_text_config(), "num_experts_per_tok", None)
    if not isinstance(chosen, int):
        return 0
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # of any kind: what cannot be built is refused when it is loaded
        return 0
    return chosen * max((model.get_parameter(name)[0].numel() for name in bare_stacks(model)), default=0)


def _element_bytes(options: BuildOptions, role: Role) -> int:
    """Of a weight that is picked. For TensorRT it is restored first; `auto` also runs the weights as they are."""
    numbers = options.numbers
    if numbers.family == "onnxruntime" and numbers.formats[role] != "float" and options.precision != AUTO:
        return 1
    return ELEMENT_BYTES[numbers.precision]
