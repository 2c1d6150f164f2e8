"""Faults in the proofs: parity, equality, the chi-squared test."""

from __future__ import annotations

from .mutant import Mutant

PARITY, EQUALITY = "runtime/proofs/parity.py", "runtime/proofs/equality.py"
CHI_SQUARED, ENUMERATION = "runtime/proofs/chi_squared.py", "runtime/proofs/enumeration.py"
TESTS = "tests/runtime/proofs"
LAYERS = "tests/exporter/proving/test_prove_layers.py"

PROOFS = (
    Mutant(
        "parity does not poison what was rejected",
        PARITY,
        "return feed(widest, position + 1, poison=True)  # only the fed token is accepted",
        "return feed(widest, position + 1)  # only the fed token is accepted",
        (f"{TESTS}/test_parity.py",),
    ),
    Mutant(
        "every width writes what the width before it wrote",
        PARITY,
        "turns[width % 2][:width]",
        "turns[0][:width]",
        (f"{TESTS}/test_parity.py",),
    ),
    Mutant(
        "parity passes NaN",
        PARITY,
        "return worst / deviation if deviation and np.isfinite(worst) else np.inf",
        "return worst / deviation if deviation and np.isfinite(worst) else 0.0",
        (f"{TESTS}/test_parity.py",),
    ),
    Mutant(
        "parity allows a thousand times as much",
        PARITY,
        "1e-3",
        "1.0",
        (f"{TESTS}/test_parity.py", "tests/exporter/test_families.py", "tests/exporter/proving"),
    ),
    Mutant(
        "parity does not climb the ladder of spans",
        PARITY,
        "[span for span in contract.spans if span in room][:1]",
        "[span for span in contract.spans if span in room][:0]",
        (f"{TESTS}/test_parity.py", "tests/exporter/test_families.py"),
    ),
    Mutant(
        "a rounded graph may be as far as it likes",
        PARITY,
        "return (2 * math.sqrt(self.divergence) + other) ** 2",
        "return (200 * math.sqrt(self.divergence) + other) ** 2",
        (f"{TESTS}/test_parity.py",),
    ),
    Mutant(
        "the reference keeps its keys in fp32",
        "exporter/checkpoints/half_precision.py",
        "key.to(dtype).to(key)",
        "key",
        ("tests/exporter/proving/test_reference.py",),
    ),
    Mutant(
        "caches in fp16 beside fp32 are judged as fp32",
        "exporter/export_model.py",
        "if exact:",
        "if chosen:",
        ("tests/exporter/proving/test_reference.py",),
    ),
    Mutant(
        "a quantized layer may be off",
        "exporter/proving/prove_layers.py",
        "if error <= 1:",
        "if error <= 1e9:",
        (LAYERS,),
    ),
    Mutant(
        "what lies between quantized layers is not compared",
        "exporter/proving/prove_layers.py",
        "if not error <= tolerance:",
        "if not error <= 1e9:",
        (LAYERS,),
    ),
    Mutant(
        "of a stack, only the first expert is proved",
        "exporter/proving/prove_layers.py",
        "for expert in range(stack):",
        "for expert in range(1):",
        ("tests/exporter/proving/test_prove_experts.py",),
    ),
    Mutant(
        "a weight that the recipe quantizes may stay in float",
        "exporter/proving/quantized_graph.py",
        "if name in weights and weights[name].name not in stored:",
        "if name in weights and not stored:",
        (LAYERS,),
    ),
    Mutant(
        "an activation may be another step far from the edge",
        "exporter/proving/layer_arithmetic.py",
        "EDGE = 8 * ROUNDING",
        "EDGE = 0.05",
        ("tests/exporter/proving/test_layer_arithmetic.py",),
    ),
    Mutant(
        "every difference is a near tie",
        EQUALITY,
        "self.margin <= 2 * self.delta",
        "self.margin >= 0.0",
        (f"{TESTS}/test_equality.py", f"{TESTS}/test_verify.py"),
    ),
    Mutant(
        "any token may come of a near tie",
        EQUALITY,
        "plainly.max() - plainly[speculative[place]]",
        "plainly.max() - np.partition(plainly, -2)[-2]",
        (f"{TESTS}/test_equality.py",),
    ),
    Mutant(
        "a proof of equality drafts as the policy says, so perhaps not at all",
        EQUALITY,
        "drafter=check_drafter(drafter, session.bundle.manifest.draft_names)",
        "drafter=drafter",
        ("tests/runtime/policy/test_decisions.py",),
    ),
    Mutant(
        "an output that ends early is equal",
        EQUALITY,
        "if len(speculative) != len(plain):",
        "if len(speculative) > len(plain):",
        (f"{TESTS}/test_equality.py",),
    ),
    Mutant(
        "the same width is not asked",
        EQUALITY,
        "return (self.same_width or self.row_tie) and self.near_tie",
        "return self.near_tie",
        (f"{TESTS}/test_equality.py", f"{TESTS}/test_verify.py"),
    ),
    Mutant(
        "rows of a GPU may be any distance apart",
        EQUALITY,
        "tie = self.margin <= 2 * self.delta and self.delta <= self.limit",
        "tie = self.margin <= 2 * self.delta",
        (f"{TESTS}/test_equality.py",),
    ),
    Mutant(
        "rows are near ties on a CPU too",
        EQUALITY,
        "if info is None or not info.on_gpu:",
        "if info is not None and not info.on_gpu:",
        (f"{TESTS}/test_equality.py",),
    ),
    Mutant(
        "what cannot be is only unlikely",
        CHI_SQUARED,
        'float("inf") if impossible else sum((count - mean) ** 2 / mean for mean, count in cells)',
        "sum((count - mean) ** 2 / mean for mean, count in cells)",
        ("tests/runtime/sampling/test_distribution.py",),
    ),
)
