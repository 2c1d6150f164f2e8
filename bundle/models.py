"""What the manifest says of one model: where it came from, its graphs and what quantizing did to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from .contract import ELEMENT_BYTES, CacheLayer, Contract, State
from .proofs import LayerProof

Role = Literal["target", "draft"]
ROLES: tuple[Role, ...] = ("target", "draft")
# How the matrices of a model are stored; `float`: in the precision of the contract.
Format = Literal["float", "int8", "int4", "fp8"]
FORMATS: tuple[Format, ...] = ("float", "int8", "int4", "fp8")
# The engines that quantized graphs are made for: each family rounds in its own way.
Family = Literal["onnxruntime", "tensorrt"]


@dataclass(frozen=True)
class Fidelity:
    """What quantizing did to a model, on `tokens` tokens of text that it was not calibrated on.

    own_texts: the user's text, not the shipped one. perplexity: of the next tokens of that text; exact_perplexity: the
    same before. divergence: mean KL of its distributions from the model's before, in nats. agreement: the part of the
    tokens behind which the likeliest token is the same, 0 to 1.
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


@dataclass(frozen=True)
class ModelSpec:
    """One model: where it came from and the sizes its graphs have.

    features: F, how many numbers a row the confidence head of its `ort` graph reads: the width of what the output
    embedding reads and that of the input embedding. 0 where the graph has no head.
    format: how its matrices are stored, but for those in `notes`: what was kept in a higher format, and why; also what
    rounds by static scales.
    fidelity: None where nothing is quantized.
    rounding: mean KL divergence in nats of the reference of the proof from the model before it was quantized; None
    where nothing is. layer_proofs: one a quantized graph.
    """

    source: str
    architecture: str
    checkpoint_sha256: str
    num_parameters: int
    vocab_size: int
    layers: tuple[CacheLayer, ...]
    graphs: dict[str, str]  # dialect -> path
    weights: str
    features: int
    format: Format
    notes: tuple[str, ...]
    fidelity: Fidelity | None
    rounding: float | None = None
    layer_proofs: tuple[LayerProof, ...] = ()

    def __post_init__(self) -> None:
        if self.features < 0:
            raise ValueError(f"features is {self.features}; it must be 0, for no confidence head, or more")

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps more than keys and values: see `State`."""
        return any(layer.states for layer in self.layers)

    def cache_names(self, side: Literal["past", "present", "new"]) -> Iterator[tuple[str, CacheLayer]]:
        for index, layer in enumerate(self.layers):
            for half in ("key", "value") if layer.num_kv_heads else ():
                yield f"{side}.{index}.{half}", layer

    def state_names(self, side: Literal["past", "present"]) -> Iterator[tuple[str, State]]:
        for index, layer in enumerate(self.layers):
            for state in layer.states:
                yield f"{side}.{index}.{state.name}", state

    def row_bytes(self, contract: Contract) -> int:
        """Of one row of keys and values, all layers."""
        return 2 * ELEMENT_BYTES[contract.precision] * sum(x.num_kv_heads * x.head_dim for x in self.layers)

    def state_bytes(self, contract: Contract) -> int:
        return sum(
            prod(state.shape(contract)) * ELEMENT_BYTES[state.precision(contract)]
            for _, state in self.state_names("past")
        )

    def cache_bytes(self, contract: Contract) -> int:
        return contract.capacity * self.row_bytes(contract) + self.state_bytes(contract)
