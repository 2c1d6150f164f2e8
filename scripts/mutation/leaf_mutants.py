"""Faults in what leaves are worth and what their rows cost."""

from __future__ import annotations

from .mutant import Mutant

CHOICES, METER = "runtime/drafting/leaves.py", "runtime/costs/meter.py"
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
        "alive[row] * found / mass[row]",
        "found / mass[row]",
        IN_CHOICES,
    ),
    Mutant(
        "a plan cannot ask for fewer leaves",
        "runtime/loop/tree_round.py",
        "room if plan.num_leaves is None else min(room, plan.num_leaves)",
        "room",
        IN_CHOICES,
    ),
    Mutant(
        "the widest pass of a tree does not fit behind the context that is measured",
        METER,
        "max((burst + 2) * (self._most + 1), session.bundle.manifest.contract.widest_step)",
        "(burst + 2) * (self._most + 1)",
        ("tests/runtime/costs/test_meter.py",),
    ),
)
