"""Faults in what leaves are worth and what their rows cost."""

from __future__ import annotations

from .mutant import Mutant

WORTH, CHOICES, METER = "runtime/policy/leaf_worth.py", "runtime/drafting/leaves.py", "runtime/costs/meter.py"
IN_WORTH, IN_CHOICES = ("tests/runtime/policy/test_leaf_worth.py",), ("tests/runtime/loop/test_tree_round.py",)

LEAVES = (
    Mutant(
        "rows are free where a busy host measured two widths as equally fast",
        WORTH,
        "return max(self._pass(rows + count) - self._pass(rows), count * self._least_step)",
        "return self._pass(rows + count) - self._pass(rows)",
        IN_WORTH,
    ),
    Mutant(
        "a leaf's row costs what the step from one row to two does",
        WORTH,
        "return steps[1:] or steps",
        "return steps",
        IN_WORTH,
    ),
    Mutant(
        "rows that were not measured cost what the last one did",
        WORTH,
        "self._verify[-1] + beyond * max(self._steps)",
        "self._verify[-1] + beyond * self._steps[-1]",
        IN_WORTH,
    ),
    Mutant(
        "leaves are taken for any gain, however small",
        WORTH,
        "+ LEAST_GAIN * (np.arange(most + 1) > 0)",
        "",
        IN_WORTH,
    ),
    Mutant(
        "the host searches for leaves that could gain next to nothing",
        WORTH,
        "return most > self._rate * HOST_SECONDS + LEAST_GAIN",
        "return most > self._rate * HOST_SECONDS",
        IN_WORTH,
    ),
    Mutant(
        "only the best position counts when it is decided whether leaves could pay",
        WORTH,
        "most += max(0.0, BEST_SHARE * alive * (1.0 - chance) - row)",
        "most = max(most, BEST_SHARE * alive * (1.0 - chance) - row)",
        IN_WORTH,
    ),
    Mutant(
        "leaves are priced as if the pass had no other rows",
        CHOICES,
        "gains -= budget.costs(rows, len(gains) - 1)",
        "gains -= budget.costs(1, len(gains) - 1)",
        IN_CHOICES,
    ),
    Mutant(
        "each leaf has to pay for itself",
        CHOICES,
        "order[: int(gains.argmax())]",
        "order[: int((np.append(np.diff(gains), -1.0) <= 0.0).argmax())]",
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
