"""The proofs that a build passed, as the manifest records them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerProof:
    """Proof of a quantized graph, layer by layer; docs/quantization.md describes the references.

    layers: how many quantized products and tables it has. layer_error: the largest difference of one of them from its
    reference, as a multiple of what arithmetic allows.
    as_run: whether the kernels of the build host were used; if their rounding is not known, kernels that do not round
    were used instead.
    exact_error: the largest difference of the parts between the quantized layers, relative to the size of a column of
    the next layer's input, or in standard deviations of the logits. exact_tolerance: the limit of that.
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
        """The proof's figures in one line."""
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
