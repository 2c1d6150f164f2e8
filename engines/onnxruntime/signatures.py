"""What the manifest says of the inputs and outputs of graphs, by name, as `check_graph` takes it."""

from __future__ import annotations

from typing import Literal

from ...bundle import COUNTS, FEEDBACK, FUSED, HIDDEN, Contract, ModelSpec, Precision, Reads
from .graphs import Signature

NAMES: dict[Precision, str] = {"fp32": "tensor(float)", "fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}
FLOAT = NAMES["fp32"]

Side = Literal["past", "present", "new"]
STATE_SIDES: tuple[Literal["past", "present"], ...] = ("past", "present")


def model_signatures(spec: ModelSpec, contract: Contract, *sides: Side) -> dict[str, Signature | None]:
    """Of a model's graph, without `columns` and what takes trees. sides: of keys and values."""
    rows, reads = contract.rows_name, spec.reads
    expected: dict[str, Signature | None] = {"tokens": None, "position": None}
    expected["logits"] = FLOAT, [1, rows, spec.vocab_size]
    if reads is not None:
        expected |= {HIDDEN: (FLOAT, [1, None, reads.width]), FEEDBACK: (FLOAT, [1, rows, reads.width])}
    elif spec.taps:
        expected[HIDDEN] = FLOAT, [1, None, len(spec.taps) * spec.tap_width]
    for side in sides:
        expected |= cache_signatures(spec, contract, side)
    if spec.has_states:
        expected |= dict.fromkeys(COUNTS)
    for side in STATE_SIDES:
        for name, state in spec.state_names(side):
            expected[name] = NAMES[state.precision(contract)], state.shape(contract)
    return expected


def cache_signatures(spec: ModelSpec, contract: Contract, side: Side) -> dict[str, Signature | None]:
    """Of keys and values."""
    rows = None if side == "new" else contract.capacity  # None: the number of tokens of the pass
    element = NAMES[contract.caches]
    return {name: (element, [1, x.num_kv_heads, rows, x.head_dim]) for name, x in spec.cache_names(side)}


def fuse_signatures(reads: Reads, tap_width: int) -> dict[str, Signature | None]:
    """Of a draft's graph that fuses. tap_width: of each tap."""
    widths = {HIDDEN: len(reads.taps) * tap_width, FUSED: reads.width}
    return {name: (FLOAT, [1, None, width]) for name, width in widths.items()}
