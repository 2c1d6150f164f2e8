"""Faults in passes and rounds on a device with drafts that read the target's hidden states."""

from __future__ import annotations

from .mutant import Mutant

HIDDEN, PICK, DECODER, ROUND, ENGINE = (
    f"engines/cuda/{name}.py" for name in ("hidden", "pick_row", "decoder", "round_graph", "engine")
)
COMPILE, CHECKS, LOOP = (
    "engines/tensorrt/compile.py",
    "engines/tensorrt/network_checks.py",
    "runtime/loop/device_rounds.py",
)
OF_ROUNDS = ("tests/engines/cuda/test_hidden_rounds.py",)
OF_PICK = ("tests/engines/cuda/test_pick_row.py",)
OF_CHECKS = ("tests/engines/tensorrt/test_network_checks.py",)

HIDDEN_ROUNDS = (
    Mutant(
        "padding that was not given stays",
        HIDDEN,
        "if count < width:\n    self._device.fill(self._given + count * row, 0, (width - count) * self.given_width, 4)",
        "",
        OF_ROUNDS,
    ),
    Mutant("padding of a round stays", HIDDEN, "self._host[self._end : width] = 0.0", "pass", OF_ROUNDS),
    Mutant("every pass of a feed reads the first rows", HIDDEN, "self._next += count", "pass", OF_ROUNDS),
    Mutant("the first row goes back", HIDDEN, "4 * (self.rows - 1) * self.width", "0", OF_ROUNDS),
    Mutant("hidden states of a pass lie over those before", HIDDEN, "self._host[place:]", "self._host", OF_ROUNDS),
    Mutant("a wide step gives its last row alone", DECODER, "self.taps.put_before(before)", "pass", OF_ROUNDS),
    Mutant(
        "a step with feedback is the graph of one that fuses",
        DECODER,
        '("step", count, span, fuses, *on_host)',
        '("step", count, span, *on_host)',
        OF_ROUNDS,
    ),
    Mutant(
        "a plain round leaves the hidden states of the last one",
        ROUND,
        "target.taps.receive(k + 1)",
        "target.taps.receive(k + 1) if k else None",
        OF_ROUNDS,
    ),
    Mutant("a round's hidden states are not counted", ROUND, "self._target.taps.count = k + 1", "pass", OF_ROUNDS),
    Mutant(
        "the last padded row counts",
        ROUND,
        "self._last_row.host[0] = count - 1",
        "self._last_row.host[0] = k",
        OF_ROUNDS,
    ),
    Mutant(
        "the last true row's feedback is read by every pass",
        ROUND,
        "self._last_row if index == 1 else self._first_row",
        "self._last_row",
        OF_ROUNDS,
    ),
    Mutant(
        "the first row's logits draft",
        ROUND,
        "self._first_row if index else self._last_row",
        "self._first_row",
        OF_ROUNDS,
    ),
    Mutant(
        "rows after a round's first pass one place late",
        ROUND,
        "range(start + count - 1, start + count - 1 + k)",
        "range(start + count, start + count + k)",
        OF_ROUNDS,
    ),
    Mutant(
        "the rows are of their own tokens",
        ROUND,
        "start = len(tokens) - 1 - count",
        "start = len(tokens) - count",
        OF_ROUNDS,
    ),
    Mutant(
        "a cut vocabulary in the draft's order",
        ENGINE,
        "columns[target_ids] = draft_ids",
        "columns[: len(draft_ids)] = draft_ids",
        OF_ROUNDS,
    ),
    Mutant(
        "no number for a token that is not proposed",
        PICK,
        "np.where(places < 0, columns, places)",
        "np.abs(places)",
        OF_ROUNDS,
    ),
    Mutant(
        "more rows than a round's first pass has",
        LOOP,
        "draft.missing(tokens, k + 1)",
        "draft.missing(tokens, 99)",
        OF_ROUNDS,
    ),
    Mutant("true rows wait although they are written", LOOP, "draft.wrote(len(hidden))", "pass", OF_ROUNDS),
    Mutant("a draft without hidden states drafts", LOOP, "k = k if hidden is not None else 0", "pass", OF_ROUNDS),
    Mutant("hidden states of any width", CHECKS, "(1, -1, len(spec.taps) * spec.tap_width)", "(1, -1, 6)", OF_CHECKS),
    Mutant("a head without feedback", CHECKS, '(outputs, "output", FEEDBACK)', '(inputs, "input", HIDDEN)', OF_CHECKS),
    Mutant(
        "feedback of the widest step",
        DECODER,
        "self.reader.rows = count",
        "self.reader.rows = self._contract.widest_step",
        OF_ROUNDS,
    ),
    Mutant(
        "hidden states pile up over steps",
        DECODER,
        "self.taps.count = count",
        "self.taps.count += count",
        OF_ROUNDS,
    ),
)
