"""What a GPU's bandwidth and the number of kernels allow: a model, no measurement.

    python scripts/roofline.py                                     # Llama-3.1-8B with a 1B draft on the cards below
    python scripts/roofline.py pair.bundle --bandwidth 3350 --gap 1.5

A pass takes the time to read its weights and the cache rows of its span, and a gap for each kernel. A round of k draft
tokens is k draft passes, one target pass and the kernels of the rules. BANDWIDTH: of the card's memory, in GB/s. GAP:
microseconds that a kernel of a CUDA graph adds to what it reads, measured by nobody here.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import onnx
from gpucheck.shapes import LLAMA_1B, LLAMA_8B  # type: ignore[import-not-found]  # beside this file
from onnx.external_data_helper import ExternalDataInfo
from specexport.bundle import Bundle, Contract, ModelSpec, Role
from specexport.engines.tensorrt.compile import WHOLE_CACHE

# Kernels of a layer and around the layers, counted in plans of TensorRT-RTX (tests/engines/tensorrt), whose compiler is
# not TensorRT's own; of the rules of a round of k = 4 (engines/cuda/rule_kernels.py).
A_LAYER = {"onnx": {"target": 12, "draft": 8}, "rows": {"target": 25, "draft": 15}}
AROUND = 4
OF_RULES = {"greedy": 10, "sampled": 105}
# Attention of several tokens copies the span's keys and values: it reads them, writes them and reads them again. A
# draft's passes are taken for those of one token.
CACHE_TRAFFIC = {"target": 3, "draft": 1}
SHARE_OF_BANDWIDTH = 0.87  # that a pass of large products reaches
HOST_MS = 0.05
ACCEPTANCE, SPAN, NUM_DRAFT_TOKENS = 0.75, 1024, 4


@dataclass(frozen=True)
class Card:
    """bandwidth: bytes per second. gap: seconds per kernel."""

    name: str
    bandwidth: float
    gap: float


@dataclass(frozen=True)
class Model:
    """weights: bytes that a pass reads. row: bytes that it moves for each of its cache rows. kernels: of a pass."""

    weights: float
    row: float
    kernels: int
    rows: int = SPAN

    def pass_ms(self, card: Card) -> float:
        read = self.weights + self.rows * self.row
        return 1e3 * (read / (SHARE_OF_BANDWIDTH * card.bandwidth) + self.kernels * card.gap)


@dataclass(frozen=True)
class Speed:
    """plain, drafted: tokens per second."""

    target_ms: float
    draft_ms: float
    round_ms: float
    plain: float
    drafted: float


def tokens_a_round(acceptance: float, num_draft_tokens: int) -> float:
    """Mean tokens of a round, the last one included, if each draft token is accepted with this probability."""
    return float(sum(acceptance**index for index in range(num_draft_tokens + 1)))


def speed(target: Model, draft: Model, card: Card, rule: str = "greedy", k: int = NUM_DRAFT_TOKENS) -> Speed:
    one, other = target.pass_ms(card), draft.pass_ms(card)
    whole = k * other + one + 1e3 * OF_RULES[rule] * card.gap + HOST_MS
    return Speed(one, other, whole, 1e3 / (one + HOST_MS), 1e3 * tokens_a_round(ACCEPTANCE, k) / whole)


def of_llama(name: str, role: Role, weight_bytes: float, dialect: str) -> Model:
    """weight_bytes: a weight's. Caches are in fp16."""
    llama = {"8b": LLAMA_8B, "1b": LLAMA_1B}[name]
    table = 0 if llama.tied else llama.vocab_size * llama.hidden  # of which a pass reads a row
    row = CACHE_TRAFFIC[role] * 2 * 2 * llama.layers * llama.kv_heads * llama.head_dim
    kernels = A_LAYER[dialect][role] * llama.layers + AROUND
    return Model(weight_bytes * (llama.num_parameters - table), row, kernels)


def of_bundle(bundle: Bundle, role: Role, spec: ModelSpec, contract: Contract) -> Model:
    """By the sizes in the manifest, and the graph, which says what a pass only looks rows up in."""
    dialect = next((name for name in ("onnx", "rows") if name in spec.graphs), next(iter(spec.graphs)))
    graph = onnx.load(bundle.path(spec.graphs[dialect]), load_external_data=False).graph
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    multiplied = {name for node in graph.node if node.op_type != "Gather" for name in node.input}
    stored = bundle.manifest.files[spec.weights].bytes
    for table in graph.initializer:
        if table.name in looked_up - multiplied and table.external_data:
            stored -= ExternalDataInfo(table).length or 0
    kernels = A_LAYER.get(dialect, A_LAYER["onnx"])[role] * len(spec.layers) + AROUND
    # A draft's passes of one token read the whole cache, used or not.
    whole = role == "draft" and contract.capacity <= WHOLE_CACHE
    rows = contract.capacity if whole else min(SPAN, contract.capacity)
    return Model(stored, CACHE_TRAFFIC[role] * spec.row_bytes(contract), kernels, rows)


INT4 = 0.5 + 2 / 32  # with a scale in fp16 for each block of 32
CARDS = {
    "H100": Card("H100", 3350e9, 1.5e-6),
    "Orin": Card("AGX Orin", 204.8e9, 5e-6),
    "Thor": Card("AGX Thor", 273e9, 5e-6),
}
# The card; bytes of a weight of target and draft; the dialect.
TABLE = {
    "H100, fp16": ("H100", 2, 2, "onnx"),
    "H100, fp16, draft in int4": ("H100", 2, INT4, "onnx"),
    "Orin, fp16, `rows`": ("Orin", 2, 2, "rows"),
    "Orin, int8, `rows`": ("Orin", 1, 1, "rows"),
    "Orin, int4": ("Orin", INT4, INT4, "onnx"),
    "Thor, int4": ("Thor", INT4, INT4, "onnx"),
}


def table() -> str:
    lines = [
        "| | target pass, ms | draft pass, ms | greedy round, ms | tokens/s, plain | drafted |",
        "|---|---|---|---|---|---|",
    ]
    for name, (card, target, draft, dialect) in TABLE.items():
        found = speed(of_llama("8b", "target", target, dialect), of_llama("1b", "draft", draft, dialect), CARDS[card])
        figures = (f"{found.target_ms:.1f}", f"{found.draft_ms:.2f}", f"{found.round_ms:.1f}", f"{found.plain:.0f}")
        lines.append(f"| {name} | {' | '.join(figures)} | {found.drafted:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What bandwidth and the number of kernels allow; a model.")
    parser.add_argument("bundle", nargs="?", type=Path, help="a bundle with a draft; else the table of docs/gpu.md")
    parser.add_argument("--bandwidth", type=float, default=3350, help="GB/s of the card's memory")
    parser.add_argument("--gap", type=float, default=1.5, help="microseconds that a kernel adds")
    given = parser.parse_args()
    if given.bundle is None:
        print(table())
        return
    bundle = Bundle.open(given.bundle, check_digests=False)
    models = [of_bundle(bundle, role, spec, bundle.manifest.contract) for role, spec in bundle.manifest.pair.items()]
    card = Card("", given.bandwidth * 1e9, given.gap * 1e-6)
    for role, model in zip(bundle.manifest.pair, models, strict=True):
        moved = f"{model.weights / 1e6:.1f} MB of weights, {model.row / 1e3:.1f} KB a cache row"
        print(f"{role}: {moved}, {model.kernels} kernels, {model.pass_ms(card):.3f} ms a pass")
    if len(models) == 2:
        for rule in OF_RULES:
            found = speed(models[0], models[1], card, rule)
            drafted = f"{found.plain:.0f} tokens/s plain, {found.drafted:.0f} drafted"
            print(f"{rule}: {found.round_ms:.3f} ms a round, {drafted}")


if __name__ == "__main__":
    main()
