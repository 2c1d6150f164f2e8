"""Faults of recurrent and convolution states, which are committed late."""

from __future__ import annotations

from .mutant import Mutant

ROWS, ARRAYS = "engines/open_rows.py", "engines/onnxruntime/states.py"
TRACED, KINDS = "exporter/tracing/ort_states.py", "exporter/tracing/recurrences.py"
STANDARD, DEVICE = "exporter/tracing/standard_states.py", "engines/cuda/states.py"
COUNTED, GRAPHS = ("tests/engines/test_open_rows.py",), ("tests/exporter/test_states.py",)
SESSIONS = ("tests/runtime/test_hybrid_sessions.py",)
ALONE, ROUNDS = ("tests/exporter/tracing/test_standard_states.py",), ("tests/engines/cuda/test_hybrids.py",)
CONTEXT, PLACES = "runtime/state/context.py", ("tests/runtime/state/test_state_checkpoints.py",)
APPLIED = "exporter/quantize/apply.py"
QUANTIZED = ("tests/exporter/proving/test_prove_states.py",)
DECODER, ON_DEVICE = "engines/cuda/decoder.py", ("tests/engines/onnxruntime/test_device_states.py",)
SPLITS, SPLIT = "exporter/passes/cuda_graphs.py", ("tests/exporter/passes/test_cuda_graphs.py",)
ON_HOST, HELD = "exporter/passes/cuda_graphs.py", ("tests/exporter/passes/test_cuda_graphs.py",)

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
        "return pending + count - still_open",
        "return max(0, pending + count - still_open - 1)",
        (*COUNTED, *GRAPHS),
    ),
    Mutant(
        "a pass that fails leaves rows that count",
        ROWS,
        """self.start = self.end = 0
return pending, self.certain(pending, count, prompt)""",
        "return pending, self.certain(pending, count, prompt)",
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
        "before = _rows(joined, states.pending, counted, ahead)",
        "before = _rows(joined, states.pending * 0, counted - states.pending, ahead)",
        GRAPHS,
    ),
    Mutant(
        "decay is applied twice",
        KINDS,
        "parts = tuple(part.flatten(2) for part in (query, key, value, g, beta))",
        "parts = tuple(part.flatten(2) for part in (query, key, value, g + g, beta))",
        GRAPHS,
    ),
    Mutant(
        "in standard operators: rejected rows reach the state",
        STANDARD,
        "counts = (index < states.pending) | (index >= states.window)",
        "counts = index >= 0",
        ALONE,
    ),
    Mutant(
        "in standard operators: a commit is off by one",
        STANDARD,
        "counts & (rank < states.certain)",
        "counts & (rank <= states.certain)",
        ALONE,
    ),
    Mutant(
        "in standard operators: a state that was committed decays twice",
        STANDARD,
        "faded * before",
        "faded * faded * before",
        ALONE,
    ),
    Mutant(
        "in standard operators: open rows are kept a row early",
        STANDARD,
        "states.certain",
        "states.certain - 1",
        ALONE,
        within="advance",
    ),
    Mutant(
        "in standard operators: a convolution lags behind what was accepted",
        STANDARD,
        "joined.index_select(1, states.pending + torch.arange(ahead))",
        "joined.index_select(1, 0 * states.pending + torch.arange(ahead))",
        ALONE,
    ),
    Mutant(
        "in standard operators: the largest block is not inverted",
        STANDARD,
        """for below in rest:
    inverse = inverse - inverse @ (below @ inverse)""",
        """for below in rest[:-1]:
    inverse = inverse - inverse @ (below @ inverse)""",
        ALONE,
    ),
    Mutant(
        "in standard operators: a row that is no number spoils those before it",
        STANDARD,
        "_by_head(torch.where(numbers, counted, 0.0), recurrence)",
        "_by_head(counted, recurrence)",
        ALONE,
    ),
    Mutant(
        "in standard operators: a row that counts and is no number is left out",
        STANDARD,
        "torch.where(silent[window:, None], NAN, output)",
        "output",
        ALONE,
    ),
    Mutant(
        "on the device: what a pass makes of the states is lost",
        DEVICE,
        "        self._device.copy(self._past, self._present, self._size)\n",
        "        pass\n",
        ROUNDS,
    ),
    Mutant(
        "on the device: a sequence begins with the states of the last",
        DEVICE,
        "not position",
        "position < 0",
        ROUNDS,
    ),
    Mutant(
        "on the device: a round that fails leaves rows that count",
        DEVICE,
        "        self._rows.forget()\n        return found",
        "        return found",
        ROUNDS,
    ),
    Mutant(
        "on the device: a draft's passes all take the counts of its first",
        "engines/cuda/round_graph.py",
        "copy(given.address, slot.at(index), 8)",
        "copy(given.address, slot.at(1), 8)",
        ROUNDS,
    ),
    Mutant(
        "a place is gone on behind a row late",
        "runtime/state/prompt_cache.py",
        "return start + shared_prefix(self.tokens[start:], tokens[start:])",
        "return start + shared_prefix(self.tokens[start:], tokens[start:]) + 1",
        PLACES,
    ),
    Mutant(
        "states are saved as those of a row early",
        ARRAYS,
        "self._rows.start",
        "self._rows.start + 1",
        ("tests/runtime/test_hybrid_places.py",),
        within="OrtStates.read",
    ),
    Mutant(
        "a place reaches over tokens that the states have not taken in",
        CONTEXT,
        "self.tokens[: cached.rows]",
        "self.tokens",
        PLACES,
    ),
    Mutant(
        "the draft's states are not kept",
        CONTEXT,
        "if self.prompt_cache is not None and decoder.has_states and known:",
        "if self.prompt_cache is not None and decoder.has_states and known and not index:",
        PLACES,
    ),
    Mutant(
        "a place is made of states behind a pass that failed",
        CONTEXT,
        "known = cached.rows > 0 and decoder.resumable(cached.rows) == cached.rows",
        "known = cached.rows > 0",
        PLACES,
    ),
    Mutant(
        "a hybrid draft begins every round at the first token",
        "runtime/drafting/model_draft.py",
        "max(len(tokens) - at_once, min(cached.rows, len(tokens) - 2))",
        "len(tokens) - at_once",
        SESSIONS,
    ),
    Mutant(
        "a quantized graph computes its angles in each pass",
        APPLIED,
        """        look_angles_up(model, capacity)
""",
        "",
        QUANTIZED,
    ),
    Mutant(
        "a quantized graph leaves Softplus to its kernel",
        APPLIED,
        """            spell_softplus_out(model)
""",
        "",
        QUANTIZED,
    ),
    Mutant(
        "a split of five parts is held by no CUDA graph",
        SPLITS,
        "MAX_PARTS = 4",
        "MAX_PARTS = 5",
        SPLIT,
    ),
    Mutant(
        "the rest of a cut split begins one part too early",
        SPLITS,
        "sizes = sizes[MAX_PARTS - 1 :]",
        "sizes = sizes[MAX_PARTS - 2 :]",
        SPLIT,
    ),
    Mutant(
        "of two counts only the first stays on the host",
        ON_HOST,
        """for count in counts:
    readers = list(count.uses())
    kept = tape.op("Add", [count, zero])
    for node, place in readers:
        node.replace_input_with(place, kept)""",
        """for count in counts[:1]:
    readers = list(count.uses())
    kept = tape.op("Add", [count, zero])
    for node, place in readers:
        node.replace_input_with(place, kept)""",
        HELD,
    ),
    Mutant(
        "counts get a zero that no shape gives",
        ON_HOST,
        """tape.op("Sub", [width, width])""",
        """tape.op("Sub", [counts[0], counts[0]])""",
        HELD,
    ),
    Mutant(
        "passes with other counts share a captured graph",
        DECODER,
        '("step", count, span, fuses, *on_host)',
        '("step", count, span, fuses)',
        ON_DEVICE,
    ),
)
