"""One model in the manifest: its source, its graphs, the proofs that they passed, and how quantization changed it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, get_args

from ..strict import OPTIONAL
from .contract import ELEMENT_BYTES, CacheLayer, Contract, State

Role = Literal["target", "draft"]
# How the matrices of a model are stored; `float`: in the precision of the contract.
Format = Literal["float", "int8", "int4", "fp8"]
FORMATS: tuple[Format, ...] = get_args(Format)
# The families of engines that quantized graphs are made for; each rounds in its own way.
Family = Literal["onnxruntime", "onnxruntime-cuda", "tensorrt"]


@dataclass(frozen=True)
class LayerProof:
    """Proof of a quantized graph, layer by layer; docs/quantization.md describes the references.

    layers: how many quantized products and tables it has. layer_error: the largest difference of one of them from its
    reference, as a multiple of what arithmetic allows.
    as_run: whether the kernels of the build host were used; if their rounding is not known, kernels that do not round
    were used instead.
    exact_error: the largest difference of the logits, in their standard deviations, where the quantized layers are
    replaced by ones over the restored weights. exact_tolerance: the limit of that.
    rounded_divergence, rounded_agreement: mean KL divergence, in nats, of the graph from the reference that is rounded
    like the graph, and the share of rows with the same most likely token.
    exact_divergence, exact_agreement: the same against the model before quantization.
    rows: the number of rows that these four are over.
    """

    dialect: str
    layers: int
    layer_error: float
    as_run: bool
    exact_error: float
    exact_tolerance: float
    rows: int
    rounded_divergence: float
    rounded_agreement: float
    exact_divergence: float
    exact_agreement: float

    @property
    def summary(self) -> str:
        how = "" if self.as_run else " (with fp32 kernels in place of this host's)"
        return (
            f"{self.dialect}: quantized layers ({self.layers}) equal their references within rounding{how}, the parts "
            f"between them within {self.exact_error:.1e}; over {self.rows} rows the graph is "
            f"{self.rounded_divergence:.4f} nats from the model rounded like it (same top-1 token "
            f"{self.rounded_agreement:.1%}), {self.exact_divergence:.4f} from the model before quantization "
            f"({self.exact_agreement:.1%})"
        )


@dataclass(frozen=True)
class Proof:
    """Comparison of a compiled graph with the recorded logits of the Hugging Face model.

    rows: how many rows of logits were compared. length: the longest sequence, in tokens. max_error: the largest
    difference, in standard deviations of the logits. divergence: mean KL divergence of the graph's distributions, in
    nats. Exactly one of the two has a tolerance: the divergence if the model's activations are rounded, else the
    largest difference.
    """

    engine: str
    dialect: str
    role: str
    rows: int
    length: int
    max_error: float
    tolerance: float | None
    divergence: float = 0.0
    divergence_tolerance: float | None = None

    def __post_init__(self) -> None:
        if (self.tolerance is None) == (self.divergence_tolerance is None):
            raise ValueError("a proof has a tolerance of the largest difference or one of the divergence")

    @property
    def passed(self) -> bool:  # False for NaN
        if self.divergence_tolerance is not None:
            return self.divergence <= self.divergence_tolerance
        return self.max_error <= (self.tolerance or 0.0)

    @property
    def measure(self) -> str:
        """The figure that is compared with the limit, as text."""
        if self.divergence_tolerance is not None:
            return f"{self.divergence:.2g} nats off"
        return f"{self.max_error:.2g} standard deviations off"

    @property
    def limit(self) -> str:
        """The tolerance, as text."""
        return f"{self.tolerance or self.divergence_tolerance or 0.0:.2g}"


@dataclass(frozen=True)
class Fidelity:
    """How quantization changed a model, measured on `tokens` tokens of text that it was not calibrated on.

    own_texts: whether the text is the user's, not the shipped one. perplexity: that of the quantized model on that
    text; exact_perplexity: that of the model before quantization. divergence: mean KL divergence of its distributions
    from the model's before quantization, in nats. agreement: how often both have the same most likely next token,
    0 to 1.
    """

    tokens: int
    own_texts: bool
    perplexity: float
    exact_perplexity: float
    divergence: float
    agreement: float

    @property
    def loss(self) -> float:
        """By how much the perplexity rose: 0.01 for one percent."""
        return self.perplexity / self.exact_perplexity - 1

    @property
    def measured_on(self) -> str:
        source = "the calibration prompts given" if self.own_texts else "the shipped texts"
        return f"{self.tokens} held-out tokens of {source}"


HiddenDraftKind = Literal["eagle3", "mtp", "dflash", "dspark", "assistant"]
# Of a block: published ones have up to 16.
MOST_SLOTS = 64
# Of notes that a build repeats at its end: how those begin that say what a target keeps of a draft, and what somebody
# should check; what is in one about layers in a higher format.
KEEPS, WARNING, MIXED = "the target keeps", "warning: ", "layers are kept in int8"
# The tap of what a target's output embedding reads, after its last norm.
LAST = -1


@dataclass(frozen=True)
class Reads:
    """What a draft reads of the target: its hidden states (`exporter/hidden_drafts/base.py`).

    taps: which, as `ModelSpec.taps`; its columns are read in this order. width: H, of what a row of the draft reads.
    fuse: by dialect, the path of the graph that makes those H numbers of the taps' F; none where they are the same. Of
    a block draft, it writes the caches too. slots: how many tokens a block has, 0 for a draft of one token a pass.
    chain: by dialect, the path of a block draft's graph that continues from the token before a slot. caches: of a draft
    that has no cache and attends to the target's, which of the target's layers its own `layers` are.
    """

    kind: HiddenDraftKind
    taps: tuple[int, ...]
    width: int
    fuse: dict[str, str]
    slots: int = field(default=0, metadata=OPTIONAL)
    chain: dict[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    caches: tuple[int, ...] = field(default=(), metadata=OPTIONAL)

    def __post_init__(self) -> None:
        fewest, most = (1, MOST_SLOTS) if self.kind in ("dflash", "dspark") else (0, 0)
        if not fewest <= self.slots <= most or bool(self.chain) != (self.kind == "dspark"):
            raise ValueError(f"{self.kind} does not go with {self.slots} slots and {len(self.chain)} graphs of a chain")
        if bool(self.caches) != (self.kind == "assistant"):
            raise ValueError(f"{self.kind} does not go with {len(self.caches)} layers of the target's cache")


@dataclass(frozen=True)
class ModelSpec:
    """One model: its source, and the sizes and files of its graphs.

    num_parameters: its own; drafts that read the target hold copies of some of the target's as well.
    format: how its matrices are stored, except those listed in `notes`.
    notes: what was kept in a higher precision, and why; also what is rounded with static scales.
    fidelity: how quantization changed it, None if nothing is quantized.
    rounding: mean KL divergence, in nats, of the proof's reference from the model before quantization; None if nothing
    is quantized.
    layer_proofs: one for each quantized graph.
    reference: path of the Hugging Face model's logits, which `proofs` of its graphs compare with.
    taps: which hidden states a target's graphs give, side by side, as `hidden_states[i]` of transformers, or
    `LAST`; tap_width: the columns of each.
    reads: of a draft that reads them.
    """

    source: str
    architecture: str
    checkpoint_sha256: str
    num_parameters: int
    vocab_size: int
    layers: tuple[CacheLayer, ...]
    graphs: dict[str, str]  # dialect -> path
    weights: str
    format: Format
    notes: tuple[str, ...]
    fidelity: Fidelity | None
    rounding: float | None = None
    layer_proofs: tuple[LayerProof, ...] = ()
    reference: str = ""
    proofs: tuple[Proof, ...] = ()
    taps: tuple[int, ...] = field(default=(), metadata=OPTIONAL)
    tap_width: int = field(default=0, metadata=OPTIONAL)
    reads: Reads | None = field(default=None, metadata=OPTIONAL)

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps states in addition to keys and values: see `State`."""
        return any(layer.states for layer in self.layers)

    def files(self) -> Iterator[str]:
        """Paths of its files, relative to the bundle."""
        yield from (*self.graphs.values(), self.weights, self.reference)
        if self.reads is not None:
            yield from (*self.reads.fuse.values(), *self.reads.chain.values())

    def columns(self, taps: tuple[int, ...]) -> list[int]:
        """Of the hidden states that a target's graphs give, the columns of `taps`, in their order."""
        starts = [self.taps.index(tap) * self.tap_width for tap in taps]
        return [column for start in starts for column in range(start, start + self.tap_width)]

    def layers_at(self, places: tuple[int, ...]) -> tuple[CacheLayer, ...]:
        return tuple(self.layers[place] for place in places if 0 <= place < len(self.layers))

    def inside(self, folder: str) -> ModelSpec:
        """A copy whose paths are all in `folder`."""
        graphs = {dialect: f"{folder}/{graph}" for dialect, graph in self.graphs.items()}
        weights, reference, reads = f"{folder}/{self.weights}", f"{folder}/{self.reference}", self.reads
        if reads is not None:
            fuse, chain = ({by: f"{folder}/{graph}" for by, graph in of.items()} for of in (reads.fuse, reads.chain))
            reads = replace(reads, fuse=fuse, chain=chain)
        return replace(self, graphs=graphs, weights=weights, reference=reference, reads=reads)

    def cache_names(self, side: Literal["past", "present", "new"]) -> Iterator[tuple[str, CacheLayer]]:
        """The graph's inputs or outputs for keys and values, each with its layer."""
        for index, layer in enumerate(self.layers):
            for half in ("key", "value") if layer.num_kv_heads else ():
                yield f"{side}.{index}.{half}", layer

    def state_names(self, side: Literal["past", "present"]) -> Iterator[tuple[str, State]]:
        """The graph's inputs or outputs for states, each with its state."""
        for index, layer in enumerate(self.layers):
            for state in layer.states:
                yield f"{side}.{index}.{state.name}", state

    def row_bytes(self, contract: Contract) -> int:
        """Bytes of one row of keys and values, over all layers; 0 where they are another model's."""
        if self.reads is not None and self.reads.caches:
            return 0
        return 2 * ELEMENT_BYTES[contract.caches] * sum(x.num_kv_heads * x.head_dim for x in self.layers)

    def state_bytes(self, contract: Contract) -> int:
        return sum(
            prod(state.shape(contract)) * ELEMENT_BYTES[state.precision(contract)]
            for _, state in self.state_names("past")
        )

    def cache_bytes(self, contract: Contract) -> int:
        """Bytes of the whole KV cache and of all states."""
        return contract.capacity * self.row_bytes(contract) + self.state_bytes(contract)
