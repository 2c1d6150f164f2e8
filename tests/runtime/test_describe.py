"""What a build ends with; and `specexport inspect`: how many layers of a hybrid keep states, what these take, and where
costs are.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specexport.bundle import KEEPS, MIXED, WARNING, Bundle, CacheLayer, Fidelity, State
from specexport.runtime.describe import describe, render, summary
from specexport.runtime.policy.routes import Policy, RoutePolicy
from support.doubles import write_bundle

# 1 MiB of state, and 5 open rows of 20,000 numbers.
LAYER = CacheLayer(0, 0, (State("state", (16, 128, 128)), State("rows", (20_000,))))
BYTES = 3 * (4 * 16 * 128 * 128 + 4 * 5 * 20_000)


def test_states_are_in_the_short_form(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path)
    assert bundle.manifest.contract.widest_step == 5
    layers = (LAYER, LAYER, CacheLayer(2, 4), LAYER)
    hybrid = replace(bundle.manifest, target=replace(bundle.manifest.target, layers=layers))
    described = describe(Bundle(tmp_path, hybrid))
    assert described.as_dict()["memory"]["target"]["states"] == BYTES
    assert described.as_dict()["memory"]["target"]["cache"] == BYTES + 2 * 2 * 4 * 4 * hybrid.contract.capacity
    assert described.as_dict()["memory"]["draft"]["states"] == 0
    lines = [line for line in render(described).splitlines() if "states" in line]
    assert len(lines) == 1, "the draft has none"
    assert ", of it 4.3 MB of states in 3 layers; checkpoint" in lines[0]


def test_a_build_ends_with_what_the_draft_gives_and_the_warnings(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path).manifest
    (draft,) = manifest.drafts
    notes = (f"{KEEPS} 20.0% of draft tokens", "the embedding is the target's", f"{WARNING}check config.json")
    noted = replace(manifest, drafts=(replace(draft, model=replace(draft.model, notes=notes)),))
    described = describe(Bundle(tmp_path, noted))
    lines = summary(described).splitlines()
    assert [line for line in lines if any(note in line for note in notes)] == [
        f"           {notes[0]}",
        f"draft: {notes[2]}",
    ]
    assert sum("sessions measure it" in line for line in lines) == 1
    entry = RoutePolicy("on", "draft", 2, "fixed", (0.7,), None)
    policy = Policy(1, "of this bundle", "onnxruntime", "now", 0.0, 0.9, entry, {})
    assert "sessions measure it" not in summary(replace(described, policy=policy))
    mixed = replace(manifest.target, notes=(f"128 of 210 {MIXED}, where int4 costs most: by estimate",))
    described_mixed = describe(Bundle(tmp_path, replace(manifest, target=mixed)))
    (line,) = (line for line in summary(described_mixed).splitlines() if MIXED in line)
    assert line.endswith(f"parameters; 128 of 210 {MIXED}")


def test_how_far_rounding_moves_the_target(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path).manifest
    assert "rounded like it" not in summary(describe(Bundle(tmp_path, manifest)))
    fidelity = Fidelity(968, False, 10.1, 10.0, 0.0062, 0.941)
    rounded = replace(manifest.target, format="int8", fidelity=fidelity)
    text = summary(describe(Bundle(tmp_path, replace(manifest, target=rounded))))
    assert "Hugging Face model, rounded like it\n" in text
    assert (
        "int8 itself is 0.0062 nats from the exact target, with the same top-1 token 94.1%, perplexity +1.00%" in text
    )


def test_weights_that_16_bits_hold_are_told(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path).manifest
    size = describe(Bundle(tmp_path, manifest)).memory_of(manifest.target)["weights"]
    for graphs, parameters, told in (("kernels", size // 2, True), ("kernels", size // 4, False), ("ort", size, False)):
        target = replace(manifest.target, graphs={graphs: "graphs/target.onnx"}, num_parameters=parameters)
        lines = render(describe(Bundle(tmp_path, replace(manifest, target=target)))).splitlines()
        line = next(line for line in lines if f"weights {size / 1e6:.1f} MB" in line and "cache" in line)
        assert ("in 16 bits" in line) == told


def test_the_drafters_and_the_default(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path)
    line = "drafters   draft, ngram, ngram+draft; the default without a policy: ngram+draft"
    assert line in render(describe(bundle)).splitlines()
    assert describe(bundle).as_dict()["drafters"] == ["draft", "ngram", "ngram+draft"]
    on_gpu = replace(bundle.manifest, engines=("onnxruntime-cuda",))
    assert f"{line}, or draft where a GPU" in render(describe(Bundle(tmp_path, on_gpu)))


def test_where_the_costs_are_of_a_bundle_that_was_not_calibrated(tmp_path: Path) -> None:
    text = render(describe(write_bundle(tmp_path)))
    assert "policy     none: sessions adapt to measured costs; specexport calibrate finds out more\n" in text
    assert "costs      none: a host's first session measures them, about half a second, and keeps them in " in text
