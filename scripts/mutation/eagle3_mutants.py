"""Faults in reading EAGLE-3 drafts: what others got wrong, and what a refusal is for."""

from __future__ import annotations

from .mutant import Mutant

BASE, EAGLE3, FIT, FORMATS, KEYS, KINDS, VOCABULARY, CHECKPOINT, MEASURED = (
    f"exporter/hidden_drafts/{name}.py"
    for name in ("base", "eagle3", "fit", "formats", "keys", "kinds", "vocabulary", "checkpoint", "measured")
)
ATTENTION, PROVING = "exporter/tracing/attention.py", "exporter/proving/reading.py"
OF_WINDOWS = ("tests/exporter/hidden_drafts/test_windows.py",)
SOURCES, OF_SOURCES = "exporter/sources.py", ("tests/exporter/test_sources.py",)
OF_MODULE, OF_FORMATS, OF_KINDS, OF_VOCABULARY, OF_CHECKPOINT, OF_MEASURED, OF_PADDED = (
    (f"tests/exporter/hidden_drafts/test_{name}.py",)
    for name in ("eagle3", "formats", "kinds", "vocabulary", "checkpoint", "measured", "read_target")
)

READING = (
    Mutant(
        "the target's parameters are counted as the draft's",
        "exporter/export_model.py",
        "checkpoint.own_parameters(model)",
        "model.num_parameters()",
        ("tests/exporter/hidden_drafts/test_build.py",),
    ),
    Mutant(
        "hidden states of the row's own token",
        BASE,
        "torch.cat([torch.zeros_like(input_ids[:, :1]), input_ids[:, :-1]], 1)",
        "input_ids",
        OF_FORMATS,
    ),
    Mutant("AngelSlim's base as its config has it", FORMATS, '"Eagle3LlamaForCausalLM"', '"none"', OF_FORMATS),
    Mutant(
        "quantized weights as another key",
        KEYS,
        'in ("quantization_config", "compression_config")',
        "in ()",
        OF_FORMATS,
    ),
    Mutant(
        "the target's layers as the head's",
        FORMATS,
        'if layer.get("num_hidden_layers") == target.layers:',
        "if False:",
        OF_FORMATS,
    ),
    Mutant(
        "a head that lacks a layer is built without it",
        FORMATS,
        'if layer.get("num_hidden_layers") == target.layers:',
        "if True:",
        OF_FORMATS,
    ),
    Mutant("NeMo's names unread", FIT, 'name.removeprefix("model.")', "name", OF_FORMATS),
    Mutant(
        "a config that cannot be used", CHECKPOINT, "except Exception as error", "except OSError as error", OF_FORMATS
    ),
    Mutant("one base for all forms", EAGLE3, "turned(self.config, form)", "self.config", OF_MEASURED),
    Mutant("a base that is not kept", CHECKPOINT, "turned(description.config, form)", "description.config", OF_FORMATS),
    Mutant("hidden states of the layer after", BASE, "states[tap]", "states[tap + (tap >= 0)]", OF_FORMATS),
    Mutant(
        "normed feedback",
        EAGLE3,
        'normed if self.form.feedback == "post" else hidden',
        "normed",
        OF_MODULE,
    ),
    Mutant(
        "feedback without its norm",
        EAGLE3,
        'normed if self.form.feedback == "post" else hidden',
        "hidden",
        OF_MODULE,
    ),
    Mutant(
        "norm_before_residual ignored",
        EAGLE3,
        "normed if self.norm_before_residual else hidden",
        "hidden",
        OF_MODULE,
    ),
    Mutant(
        "the hidden states before the embedding",
        EAGLE3,
        "torch.cat([self.input_layernorm(embedded), normed], -1)",
        "torch.cat([normed, self.input_layernorm(embedded)], -1)",
        OF_MODULE,
    ),
    Mutant(
        "fc_norm ignored", EAGLE3, "if self.fc_norm is not None:", "if False:", OF_MODULE, within="Eagle3Draft.fuse"
    ),
    Mutant("input_norm ignored", EAGLE3, "if self.input_norm is not None:", "if False:", OF_MODULE),
    Mutant(
        "every layer reads the embedding",
        EAGLE3,
        "index < self.form.joining",
        "True",
        OF_MODULE,
        within="Eagle3Draft.run",
    ),
    Mutant("ids of what layers give", FIT, "return tuple(one + 1 for one in ids)", "return ids", OF_FORMATS),
    Mutant("the last layer's tap is taken", FIT, "if any(LAST in one for one in taps):", "if False:", OF_FORMATS),
    Mutant("defaults of the other count", FIT, 'format != "speculators" and outside == gives', "False", OF_FORMATS),
    Mutant(
        "speculators' ids may count otherwise",
        FIT,
        'format != "speculators" and outside == gives',
        "outside == gives",
        OF_FORMATS,
    ),
    Mutant(
        "a tap beyond the last layer", FIT, "tap != LAST and not 0 <= tap <= target.layers for", "False for", OF_FORMATS
    ),
    Mutant(
        "SpecForge's norm_output",
        FORMATS,
        'return ("post",) if format == "speculators" else ("post", "pre")',
        'return ("post",)',
        OF_FORMATS,
    ),
    Mutant("the worst of several readings", CHECKPOINT, "mean == max(means)", "mean == min(means)", OF_FORMATS),
    Mutant(
        "a draft token is judged by the token after",
        MEASURED,
        "target_probs[step : step + rows]",
        "target_probs[step + 1 :][:rows]",
        OF_MEASURED,
    ),
    Mutant(
        "a drafted row sees true rows after it",
        EAGLE3,
        "torch.cat([true, *[itself] * step], 1)",
        "torch.cat([true, *[true] * step], 1)",
        OF_MEASURED,
    ),
    Mutant("the draft is exported as it was measured last", MEASURED, "model.read_as(own)", "pass", OF_MEASURED),
    Mutant(
        "any other reading is called better", MEASURED, "SURE * float(gains.std())", "-float(gains.std())", OF_MEASURED
    ),
    Mutant(
        "the least of the better readings",
        MEASURED,
        "max(better, key=lambda other: float(better[other].mean()), default=None)",
        "min(better, key=lambda other: float(better[other].mean()), default=None)",
        OF_MEASURED,
    ),
    Mutant("heads have no windows", FORMATS, 'format == "speculators"', "False", OF_WINDOWS, within="describe"),
    Mutant(
        "a form of full attention differs from none",
        FORMATS,
        "windows if any(windows) else ()",
        "windows",
        OF_WINDOWS,
    ),
    Mutant(
        "a window of one row more",
        BASE,
        "sliding_window_overlay(window)",
        "sliding_window_overlay(window + 1)",
        OF_WINDOWS,
    ),
    Mutant("a Qwen3's graph without its window", EAGLE3, "self.windows[index] or None", "None", OF_WINDOWS),
    Mutant(
        "a Llama's graph without its window", EAGLE3, "window or None", "None", OF_WINDOWS, within="Eagle3Draft.run"
    ),
    Mutant("one mask for all layers", EAGLE3, "masks[window]", "masks[max(masks)]", OF_WINDOWS),
    Mutant("a drafted row sees as far as the true one", EAGLE3, "age + step - column", "age - column", OF_MEASURED),
    Mutant("a drafted row is as old as a true one", EAGLE3, "age + step - column", "age + step", OF_MEASURED),
    Mutant(
        "a draft is measured without windows", EAGLE3, "seen & (ages < window) if window else seen", "seen", OF_MEASURED
    ),
    Mutant(
        "long windows of heads are not proved",
        PROVING,
        "max(getattr(model.form, 'windows', ()), default=0)",
        "0",
        OF_WINDOWS,
    ),
    Mutant(
        "windows longer than the cache in graphs",
        ATTENTION,
        "window if window < cache.past[layer][0].shape[2] else 0",
        "window",
        OF_WINDOWS,
    ),
    Mutant(
        "windows of one row less than the cache are left out",
        ATTENTION,
        "window if window < cache.past[layer][0].shape[2] else 0",
        "window if window < cache.past[layer][0].shape[2] - 1 else 0",
        OF_WINDOWS,
    ),
    Mutant("slots of a block are put together", MEASURED, "view(-1, slots).T", "view(slots, -1)", OF_MEASURED),
    Mutant("layers after the last are tried", MEASURED, "max(one) < layers", "True", OF_MEASURED),
    Mutant(
        "the target reads held-out texts twice",
        BASE,
        "self._keep(input_ids, torch.cat([output.hidden_states[tap] for tap in self.taps], -1))",
        "",
        OF_MEASURED,
    ),
    Mutant("a padded text has the states of a shorter one", BASE, "not any(tokens[len(text) :])", "True", OF_PADDED),
    Mutant("of padded texts the shortest", BASE, "max(texts, key=len)", "min(texts, key=len)", OF_PADDED),
    Mutant(
        "texts are padded in front",
        BASE,
        "(0, 0, 0, row.shape[1] - states.shape[1])",
        "(0, 0, row.shape[1] - states.shape[1], 0)",
        OF_PADDED,
    ),
    Mutant("a config lacks nothing", FORMATS, "config.get(flag) is None", "False", OF_CHECKPOINT),
    Mutant(
        "what was said is called absent", FORMATS, "flag == 'norm_output' and said.feedback", "False", OF_CHECKPOINT
    ),
    Mutant(
        "rotary embeddings of their own are called absent",
        FORMATS,
        "return any(place.get('rope_theta') is not None for place in places)",
        "return False",
        OF_CHECKPOINT,
    ),
    Mutant("a head is exported as a target", SOURCES, "if place and not is_gguf(target):", "if False:", OF_SOURCES),
    Mutant(
        "an engine that there is not is looked up",
        "exporter/options.py",
        "            info_of(engine)  # raises",
        "            pass  # raises",
        OF_SOURCES,
    ),
    Mutant("options for one head overrule another", SOURCES, "len(takers) > 1", "False", OF_SOURCES),
    Mutant(
        "an option for heads is refused beside a draft",
        SOURCES,
        "if not takers:",
        "if len(takers) < len(kinds):",
        OF_SOURCES,
    ),
    Mutant("a draft of another vocabulary", FIT, "words != target.vocab_size", "False", OF_SOURCES),
    Mutant(
        "an unknown key",
        KEYS,
        "key not in read | HARMLESS | _of_any_model()",
        "False",
        OF_FORMATS,
    ),
    Mutant("a key of one value", KEYS, "value is not None and value != EXPECTED[key]", "False", OF_FORMATS),
    Mutant("other rotary embeddings", KEYS, "kind not in ROTATIONS", "False", OF_FORMATS),
    Mutant("P-EAGLE's mask", KINDS, "'mask_hidden' in names", "False", OF_KINDS),
    Mutant("d2t as ids", VOCABULARY, "places + d2t.astype(np.int64)", "d2t.astype(np.int64)", OF_VOCABULARY),
    Mutant("d2t beyond the vocabulary", VOCABULARY, "(ids < 0) | (ids >= vocab_size)", "ids < 0", OF_VOCABULARY),
    Mutant(
        "d2t and t2d that differ",
        VOCABULARY,
        "np.flatnonzero(counts.astype(bool) != t2d.astype(bool))",
        "()",
        OF_VOCABULARY,
    ),
    Mutant("a d2t that was never set", VOCABULARY, "np.array_equal(d2t, places)", "False", OF_VOCABULARY),
    Mutant(
        "rows of the head by the draft's ids",
        CHECKPOINT,
        "weight if rows is None else weight[rows]",
        "weight if rows is None else weight[: len(rows)]",
        OF_FORMATS,
    ),
    Mutant("a draft of another target", FIT, "not is_same(named, target)", "False", OF_CHECKPOINT),
    Mutant(
        "a draft of another architecture", FIT, "theirs is not None and theirs != architecture", "False", OF_CHECKPOINT
    ),
    Mutant(
        "a draft of another target is refused late", SOURCES, "if size := Target.of(theirs):", "if False:", OF_SOURCES
    ),
    Mutant(
        "engines that run no such drafts", SOURCES, "kind not in ENGINES[engine].hidden_drafts", "False", OF_SOURCES
    ),
    Mutant("a draft of twice the width reads more layers", FIT, "fused / taps != named", "True", OF_SOURCES),
    Mutant("a digest without the target's", CHECKPOINT, "self.target.digest", "''", OF_CHECKPOINT),
)
