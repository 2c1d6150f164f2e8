"""Faults in drafts of blocks: the reference's mathematics, whose config says what, and rows that a block leaves."""

from __future__ import annotations

from .mutant import Mutant

BLOCK, FORMATS, KEYS, KINDS = (f"exporter/hidden_drafts/{name}.py" for name in ("block", "formats", "keys", "kinds"))
GRAPHS, ENGINE, DRAFT = (
    "exporter/tracing/blocks.py",
    "engines/onnxruntime/blocks.py",
    "runtime/drafting/model_draft.py",
)
OF_MODULE, OF_GRAPHS, OF_KINDS = (
    (f"tests/exporter/hidden_drafts/test_{name}.py",) for name in ("block", "block_graphs", "kinds")
)
OF_ROWS = ("tests/runtime/state/test_hidden_rows.py",)

BLOCKS = (
    Mutant("the context without its norm", BLOCK, "self.hidden_norm(self.fc(hidden))", "self.fc(hidden)", OF_MODULE),
    Mutant("a block sees its anchor's row", BLOCK, "rows < ends[:, None]", "rows <= ends[:, None]", OF_MODULE),
    Mutant("blocks see each other", BLOCK, "mine[:, None] == mine", "mine[:, None] >= 0", OF_MODULE),
    Mutant("windows ignored", BLOCK, "rows >= ends[:, None] - window", "rows >= 0", OF_MODULE),
    Mutant("windows without order", BLOCK, "if self.form.causal[index]:", "if False:", OF_MODULE),
    Mutant(
        "an order in windows alone", BLOCK, "self.form.causal[index]:", "self.form.causal[index] and window:", OF_MODULE
    ),
    Mutant("logits without their cap", BLOCK, "logits if cap is None else cap", "logits if True else cap", OF_MODULE),
    Mutant(
        "an embedding without its scale",
        "exporter/hidden_drafts/checkpoint.py",
        'getattr(theirs, "embed_scale", 1)',
        "1",
        OF_MODULE,
    ),
    Mutant("the anchor's slot drafts", BLOCK, "size - self.form.slots :]", ": self.form.slots]", OF_MODULE),
    Mutant("no gate", BLOCK, "if self.gate_proj is not None:", "if False:", OF_MODULE),
    Mutant(
        "confidence without the token before",
        BLOCK,
        'if self.form.confidence == "markov" else states',
        "if False else states",
        OF_MODULE,
    ),
    Mutant(
        "keys without their norm",
        BLOCK,
        'self.self_attn.k_norm(self._heads(self.context["k_proj"](context)))',
        'self._heads(self.context["k_proj"](context))',
        OF_MODULE,
    ),
    Mutant(
        "layers one too low",
        "exporter/hidden_drafts/fit.py",
        'ids if format == "speculators-blocks" else _after(ids)',
        "ids",
        OF_MODULE,
    ),
    Mutant(
        "an order that flags deny",
        FORMATS,
        'if keys.get("sliding_window_non_causal") else []',
        "if False else []",
        OF_MODULE,
    ),
    Mutant("an order that the config denies", FORMATS, "if keys.get(key) is not None]", "if False]", OF_MODULE),
    Mutant("neighbours turned as halves", FORMATS, "config.get(key) is False", "False", OF_MODULE),
    Mutant(
        "heads whose rows are not moved apart",
        "exporter/hidden_drafts/checkpoint.py",
        ".transpose(1, 2).reshape(rows.shape)",
        ".reshape(rows.shape)",
        OF_MODULE,
    ),
    Mutant("a cap of nothing", FORMATS, "and cap > 0", "and cap >= 0", OF_MODULE),
    Mutant("no sinks", BLOCK, "if not self.form.sinks:", "if True:", OF_MODULE),
    Mutant("no sinks in a graph", GRAPHS, "if form.sinks:", "if False:", OF_GRAPHS),
    Mutant("windows in full layers", FORMATS, 'if keys.get("use_swa") and', "if False and", OF_MODULE),
    Mutant("a window of another layout", FORMATS, 'keys.get("swa_window_size") or', "", OF_MODULE),
    Mutant("ModelOpt's confidence", "exporter/hidden_drafts/fit.py", '"confidence_proj."', '"confidence."', OF_MODULE),
    Mutant(
        "a mask beyond the vocabulary", FORMATS, 'numbers["mask_token_id"] >= target.vocab_size', "False", OF_MODULE
    ),
    Mutant("a recurrent chain", KEYS, 'not in (None, "vanilla", "gated")', "in ()", OF_MODULE),
    Mutant(
        "a round that only asked is free",
        "runtime/policy/cost_model.py",
        "self.block if passes and not num_drafted else 0.0",
        "0.0",
        ("tests/runtime/policy/test_cost_model.py",),
    ),
    Mutant("Domino is read as DFlash", KINDS, 'inner.get("projector_type") == "domino"', "False", OF_KINDS),
    Mutant("DFlare is read as DFlash", KINDS, '"DFlare"', '"none"', OF_KINDS),
    Mutant("DFlash 2 is read as DFlash", KINDS, '"DFlash2"', '"none"', OF_KINDS),
    Mutant(
        "a graph sees rows of the past's rest",
        GRAPHS,
        'given[f"past.{index}.{half}"][:, :, : columns.shape[0], :width]',
        'given[f"past.{index}.{half}"][..., :width]',
        OF_GRAPHS,
    ),
    Mutant(
        "rows one place late",
        GRAPHS,
        'model.context(model.fuse(given[HIDDEN].to(model.dtype)), given["position"])',
        'model.context(model.fuse(given[HIDDEN].to(model.dtype)), given["position"] + 1)',
        OF_GRAPHS,
    ),
    Mutant(
        "a block one place late",
        GRAPHS,
        'model.block(given["tokens"], position + slot, partial(_attend, model, given))',
        'model.block(given["tokens"], position + 1 + slot, partial(_attend, model, given))',
        OF_GRAPHS,
    ),
    Mutant(
        "windows that the text does not reach are not proved",
        "exporter/proving/reading.py",
        "max(step.end for step in steps) <= window < capacity",
        "False",
        OF_GRAPHS,
    ),
    Mutant(
        "the confidence of an earlier slot", ENGINE, "self._confidence = float(given[CONFIDENCE][0])", "pass", OF_GRAPHS
    ),
    Mutant(
        "confidences are not proved",
        "runtime/proofs/confidence_parity.py",
        "np.full(entry.step.rows, confidence() if confidence else np.nan, np.float32)",
        "entry.confidence",
        OF_GRAPHS,
    ),
    Mutant(
        "windows of a graph are ignored",
        GRAPHS,
        'given["position"] - window if window else 0',
        "0",
        OF_GRAPHS,
    ),
    Mutant("a graph without order", GRAPHS, "if window or causal:", "if window:", OF_GRAPHS),
    Mutant("the same slot again", ENGINE, "self._slot += 1", "pass", OF_GRAPHS),
    Mutant(
        "a chain that stays at the anchor",
        ENGINE,
        "np.array(tokens[-1:], np.int64)",
        "np.array(self._token, np.int64)",
        OF_GRAPHS,
    ),
    Mutant("more tokens than slots", DRAFT, "cached.slots or plan.num_draft_tokens", "plan.num_draft_tokens", OF_ROWS),
)
