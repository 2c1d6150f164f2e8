"""What the manifest says of the proofs that a build passed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerProof:
    """A quantized graph, proved layer by layer; docs/quantization.md says against what.

    layers: its quantized products and tables; layer_error: the largest difference of one from its reference, as a
    multiple of what arithmetic allows. as_run: with the kernels of the host that built it; else, where these round in a
    way that is not known, with kernels that do not round. exact_error: the largest difference of what lies between
    them, in sizes of a column of what the next layer reads, or in standard deviations of the logits; exact_tolerance is
    allowed. rounded_divergence, rounded_agreement: mean KL divergence in nats of the graph from the reference that is
    rounded as it is, and the part of the rows whose likeliest token is the same; exact_divergence, exact_agreement:
    from the model before it was quantized. rows: that these are over.
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
        """One line."""
        how = "" if self.as_run else " (with fp32 kernels in place of this host's)"
        return (
            f"{self.dialect}: {self.layers} quantized layers right to their last rounding{how}, what lies between to "
            f"{self.exact_error:.1e}; over {self.rows} rows {self.rounded_divergence:.4f} nats from the rounded "
            f"reference, {self.exact_divergence:.4f} from the exact model (the same likeliest token "
            f"{self.rounded_agreement:.1%} and {self.exact_agreement:.1%} of the time)"
        )


@dataclass(frozen=True)
class Proof:
    """A compiled graph against the recorded logits of the Hugging Face model.

    rows: logit rows compared. length: the longest sequence they end. max_error: the largest difference, in standard
    deviations of the logits. divergence: mean KL divergence of the graph's distributions, in nats. One of the two has a
    tolerance: the divergence where the model's activations are rounded, else the largest difference.
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
        """What is compared with the limit."""
        if self.divergence_tolerance is not None:
            return f"{self.divergence:.2g} nats off"
        return f"{self.max_error:.2g} standard deviations off"

    @property
    def limit(self) -> str:
        return f"{self.tolerance or self.divergence_tolerance or 0.0:.2g}"
