"""Memory that a build will need, looked up before it starts: a process that runs out of it is killed without a word.

A mixture of experts copies weights: an engine picks the weights [rows times experts of a row, N, K] of one product at
once, and multiplies them then. A row copies as much in a narrow pass as in a wide one, so wide passes bring such
products nothing and take memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ..bundle import ELEMENT_BYTES, Family, Format, Precision, Role
from .checkpoints.checkpoint import Checkpoint
from .free_memory import BASE, available, require_free
from .options import BuildOptions
from .weights.experts import UNSTACKED, bare_stacks
from .weights.fidelity import BATCH_TOKENS
from .weights.fidelity import MAX_HELD_OUT_TOKENS as HELD_OUT_TOKENS

# In addition to the weights, in the precision they are traced in: while they are quantized those that are restored from
# few bits, in fp32, and the few bits themselves; in the proof a graph over the restored ones. Where it is TensorRT's,
# ONNX Runtime folds what restores them, and packs all that it has folded for its products before it lets the first go.
RESTORED_BYTES, FOLDED_BYTES = 4 + 1, 4 + 4 + 1
# Rows of fp32 logits in addition to them: the exact model's on the held-out text, and some copies of one batch of it.
LOGIT_ROWS = HELD_OUT_TOKENS + 4 * BATCH_TOKENS
# What a weight takes in a session of ONNX Runtime, as its kernels keep it, scales included; and at most in a file.
RUN_BYTES: dict[Format, float] = {"float": 4.0, "int8": 1.1, "int4": 0.9, "fp8": 1.1}


def require_memory(
    parameters: int, precision: Precision, quantized: bool, vocabulary: int, folded: bool = False, beside: int = 0
) -> bool:
    """Whether a model of `parameters` weights, once it is loaded, has to be moved to the disk (`host_memory.py`) to
    be exported with the memory that is free. vocabulary: entries of its output layer. folded: for TensorRT. beside:
    bytes of another model that is loaded with it.

    Raises `OutputError` where not even that is enough.
    """
    remedy, weights, base = "on a larger host", parameters * ELEMENT_BYTES[precision], BASE + beside
    what = f"exporting {parameters / 1e9:.1f} billion weights"
    if not quantized:
        require_free(base + weights, what, f"with --precision fp16, or {remedy}" if precision == "fp32" else remedy)
        return False
    base += vocabulary * 4 * LOGIT_ROWS
    restored, free = parameters * (FOLDED_BYTES if folded else RESTORED_BYTES), available()
    if free is None or base + weights + restored <= free:
        return False
    remedy = f"with --precision and --draft-precision fp32, fp16 or bf16, or {remedy}"
    require_free(base + restored, what, remedy)  # more than the weights while they are loaded
    return True


# Of what one product copies in a pass, if no chunk is asked for: about a third of what Python with torch takes at a
# build. Chosen for memory: at 64 rows and at 128 of a mixture of experts, prompts took as long.
MAX_BYTES = 1 << 28


def prompt_chunk(models: Sequence[tuple[Role, Checkpoint]], options: BuildOptions) -> int:
    """Tokens per prefill pass: the requested number, else as many of the default as every model's copies allow.

    Never fewer than a verification pass has.
    """
    if options.prompt_chunk is not None:
        return options.prompt_chunk
    numbers, chunks = options.numbers, [options.chunk]
    for role, model in models:
        # for TensorRT, weights are restored before they are picked
        picked_as_stored = numbers.family == "onnxruntime" and numbers.formats[role] != "float"
        if copied := copied_weights(model.config) * (1 if picked_as_stored else ELEMENT_BYTES[numbers.precision]):
            chunks.append(max(MAX_BYTES // copied, options.max_draft_tokens + 1))
    return min(chunks)


def require_memory_for_copies(models: Sequence[tuple[Role, Checkpoint]], options: BuildOptions, rows: int) -> None:
    """Raises `OutputError` where the copies of a pass of so many rows do not fit into memory, in fp32 as the proof of a
    quantized graph runs it.
    """
    for _, model in models:
        precision = "fp32" if options.numbers.quantized else options.numbers.precision
        copied = copied_weights(model.config) * ELEMENT_BYTES[precision]
        require_free(
            BASE + copied * rows,
            f"a pass of {rows} rows, which copies the weights of their experts,",
            "with a smaller --prompt-chunk, or on a larger host",
        )


def copied_weights(config: Any) -> int:
    """Numbers that a row copies for the largest product of its experts; 0 for a model without stacks."""
    largest = max((weight[0].numel() for weight, _ in _stacks(config)), default=0)
    return config.get_text_config().num_experts_per_tok * largest if largest else 0


def quantized_bytes(config: Any, parameters: int, format: Format, family: Family, precision: Precision) -> int:
    """The most that the weights of a quantized model take in a file. Which experts are stored in another format is
    decided in `weights/choose.py`. config: None for a model without any.
    """
    stacks = _stacks(config) if config else []
    floats = sum(weight.numel() for weight, stackable in stacks if family == "onnxruntime-cuda" or not stackable)
    others = sum(weight.numel() for weight, _ in stacks) - floats
    of_others = RUN_BYTES["int8" if family == "onnxruntime" else format]
    rest = (parameters - floats - others) * RUN_BYTES[format]
    return int(rest + others * of_others) + floats * ELEMENT_BYTES[precision]


def _stacks(config: Any) -> list[tuple[torch.Tensor, bool]]:
    """The stacks of experts [E, N, K] of a mixture, without memory for the weights, and whether `stack_experts` takes
    each.
    """
    if not isinstance(getattr(config.get_text_config(), "num_experts_per_tok", None), int):
        return []
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # of any kind: what cannot be built is refused when it is loaded
        return []
    return [(model.get_parameter(name), kind == UNSTACKED) for name, kind in bare_stacks(model).items()]
