"""Faults of recurrent and convolution states, which are committed late."""

from __future__ import annotations

from .mutant import Mutant

ROWS, ARRAYS = "engines/open_rows.py", "engines/onnxruntime/states.py"
TRACED, KINDS = "exporter/tracing/states.py", "exporter/tracing/recurrences.py"
COUNTED, GRAPHS = ("tests/engines/test_open_rows.py",), ("tests/exporter/test_states.py",)
SESSIONS = ("tests/runtime/test_hybrid_sessions.py",)

STATES = (
    Mutant(
        "rejected rows stay in the state",
        ROWS,
        "pending = position - self.start if position else 0",
        "pending = self.end - self.start if position else 0",
        (*COUNTED, *GRAPHS),
    ),
    Mutant(
        "a commit is off by one",
        ROWS,
        "return pending, pending + count - still_open",
        "return pending, max(0, pending + count - still_open - 1)",
        (*COUNTED, *GRAPHS),
    ),
    Mutant(
        "a pass that fails leaves rows that count",
        ROWS,
        """        self.start = self.end = 0
        return pending""",
        "        return pending",
        (*COUNTED, *SESSIONS),
    ),
    Mutant(
        "a sequence begins with the states of the last",
        ARRAYS,
        """        if not position:
            self._fill(0.0)
""",
        "",
        (*GRAPHS, *SESSIONS),
    ),
    Mutant(
        "a convolution lags behind what was accepted",
        TRACED,
        "before = _rows(joined, states.pending, behind, ahead)",
        "before = _rows(joined, states.pending * 0, behind - states.pending, ahead)",
        GRAPHS,
    ),
    Mutant(
        "decay is applied twice",
        KINDS,
        "parts = tuple(part.flatten(2) for part in (query, key, value, g, beta))",
        "parts = tuple(part.flatten(2) for part in (query, key, value, g + g, beta))",
        GRAPHS,
    ),
)
