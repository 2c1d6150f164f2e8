"""Faults in what a draft reads of the target's hidden states, and when."""

from __future__ import annotations

from .mutant import Mutant

ROWS, CONTEXT, LOOP, DRAFT = (
    "runtime/state/hidden_rows.py",
    "runtime/state/context.py",
    "runtime/loop/speculate.py",
    "runtime/drafting/model_draft.py",
)
TAPS, PROVE, CHOICE = "exporter/tracing/taps.py", "exporter/proving/reading.py", "exporter/recipe_choice.py"
OF_ROWS, OF_BUILDS = ("tests/runtime/state/test_hidden_rows.py",), ("tests/exporter/hidden_drafts/test_build.py",)

HIDDEN = (
    Mutant("a block's tokens count as passes", DRAFT, "+= not (drafted and self._cached.slots)", "+= 1", OF_ROWS),
    Mutant("a row is of its own token", ROWS, "tokens[self.rows + 1 :]", "tokens[self.rows : -1]", OF_ROWS),
    Mutant(
        "chunks are of their own tokens",
        ROWS,
        "tokens[self.rows + 1 : self.rows + 1 + count]",
        "tokens[self.rows : self.rows + count]",
        OF_ROWS,
    ),
    Mutant("rows of rejected tokens count", CONTEXT, "cached.keep(rows - cached.ahead)", "cached.keep(rows)", OF_ROWS),
    Mutant(
        "a common prefix keeps the row of another token",
        CONTEXT,
        "cached.keep((min(common, cached.last(prompt)) if cached.decoder.has_states else common) - cached.ahead)",
        "cached.keep(min(common, cached.last(prompt)) if cached.decoder.has_states else common)",
        OF_ROWS,
    ),
    Mutant("hidden states come twice", ROWS, "hidden[max(0, self.reach - position) :]", "hidden", OF_ROWS),
    Mutant(
        "hidden states after a gap are taken", ROWS, "position > self.reach or not len(new)", "not len(new)", OF_ROWS
    ),
    Mutant("what waits is not moved up", ROWS, "self._waiting[count : count + self._count].copy()", "0", OF_ROWS),
    Mutant(
        "what waits outlives a roll-back", ROWS, "self._count = max(0, min(self.reach, rows) - self.rows)", "", OF_ROWS
    ),
    Mutant(
        "what waits outlives rows from elsewhere", ROWS, "self._count = 0", "", OF_ROWS, within="HiddenDecoder.resume"
    ),
    Mutant("a drafted row reads the states before", ROWS, "self.reader.read_back()", "", OF_ROWS),
    Mutant("a draft reads all columns", ROWS, "waiting[:, self.columns]", "waiting", OF_ROWS),
    Mutant(
        "the last accepted row is not handed over", LOOP, "outcome.num_accepted + 1)", "outcome.num_accepted)", OF_ROWS
    ),
    Mutant("prompts hand nothing over", CONTEXT, "self.take if self.readers else None", "None", OF_ROWS),
    Mutant("missing hidden states are not given again", CONTEXT, "self.target.keep(reader.reach)", "", OF_ROWS),
    Mutant("what waits is not stored", CONTEXT, "cached.catch_up(self.tokens, cached.reach)", "", OF_ROWS),
    Mutant("a first pass without a row", CONTEXT, "reader.keep(len(prompt) - 2)", "", OF_ROWS),
    Mutant(
        "drafted rows one place late",
        DRAFT,
        "len(tokens) + len(drafted) - 2",
        "len(tokens) + len(drafted) - 1",
        OF_ROWS,
    ),
    Mutant("rotated hidden states", TAPS, "self.rotation.back(state)", "state", OF_BUILDS),
    Mutant("hidden states are not compared", PROVE, "not off <= tolerance", "False", OF_BUILDS),
    Mutant(
        "hidden states are judged by the largest of all rows",
        PROVE,
        "largest = np.abs(wanted).max(1)",
        "largest = np.abs(wanted).max(keepdims=True)[0]",
        ("tests/exporter/proving/test_reading.py",),
    ),
    Mutant(
        "a row of zeros is off by no number",
        PROVE,
        "np.where(largest > 0, largest, 1)",
        "largest",
        ("tests/exporter/proving/test_reading.py",),
    ),
    Mutant(
        "a head is proved with more rows than a pass has",
        PROVE,
        "min(contract.prompt_chunk, 4 * widest)",
        "4 * widest",
        OF_BUILDS,
    ),
    Mutant(
        "a graph's output is the input that it gives back",
        "exporter/tracing/onnx_export.py",
        "if value.is_graph_input():",
        "if False:",
        OF_BUILDS,
    ),
    Mutant("no drafted row is proved", PROVE, "steps += drafted", "", OF_BUILDS),
    Mutant("a head is rotated", CHOICE, "not isinstance(model, HiddenDraft)", "True", OF_BUILDS),
)
