"""Faults in what leaves are worth and what their rows cost."""

from __future__ import annotations

from .mutant import Mutant

CHOICES = "runtime/sampling/leaves.py"
IN_CHOICES = ("tests/runtime/loop/test_tree_round.py",)

LEAVES = (
    Mutant(
        "leaves are taken in the order of their positions",
        CHOICES,
        'np.argsort(-values, kind="stable")',
        "np.arange(len(values))",
        IN_CHOICES,
    ),
    Mutant(
        "a leaf is worth as much whether the draft comes so far or not",
        CHOICES,
        "alive[row] * values / mass[row]",
        "values / mass[row]",
        IN_CHOICES,
    ),
    Mutant(
        "a plan cannot ask for fewer leaves",
        "runtime/loop/tree_round.py",
        "max_leaves if plan.num_leaves is None else min(max_leaves, plan.num_leaves)",
        "room",
        IN_CHOICES,
    ),
)
