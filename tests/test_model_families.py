"""`scripts/model_families`: its page says what its results say, and the results are what an attempt gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from families import attempt as attempts
from families.attempt import Outcome, attempt
from families.page import PAGE, cause, families, written
from families.sizes import one_of_each, tiny
from families.sweep import RESULTS, Results, read, run, sweep
from specexport.exporter.tracing import attention
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KEPT = read(RESULTS)


def test_the_page_is_up_to_date() -> None:
    if transformers.__version__ != KEPT.transformers:
        pytest.skip(f"the page is of transformers {KEPT.transformers}, which may know other families")
    assert PAGE.read_text(encoding="utf-8") == written(KEPT), "run scripts/model_families.py --page-only"
    assert set(KEPT.families) <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def test_at_least_sixty_families_are_proved() -> None:
    assert sum(outcome.status == "proved" for outcome in KEPT.families.values()) >= 60


def test_every_refusal_is_a_line_that_names_a_cause() -> None:
    for family, outcome in KEPT.families.items():
        assert (outcome.reason == "") is (outcome.status == "proved"), family
        assert "\n" not in outcome.reason, family
        assert "Traceback" not in outcome.reason, family


@pytest.mark.parametrize("family", ["helium", "falcon"])
def test_an_attempt_gives_what_the_table_says(family: str) -> None:
    assert attempt(family) == KEPT.families[family]


def test_a_wrong_graph_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a family whose tiny model has a window."""
    monkeypatch.setattr(attempts, "tiny", lambda family: tiny("starcoder2"))
    emit = attention.EMITTERS["ort"]
    monkeypatch.setitem(attention.EMITTERS, "ort", lambda q, k, v, layer: emit(q, k * 1.5, v, layer))
    outcome = attempt("starcoder2")
    assert outcome.status == "failed"
    assert "standard deviations off" in outcome.reason


def test_a_family_that_cannot_be_made_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(family: str) -> None:
        raise RuntimeError("no such size\nand more")

    monkeypatch.setattr(attempts, "tiny", fail)
    assert attempt("llama") == Outcome("unmade", "RuntimeError: no such size and more")


def test_a_process_that_ends_or_takes_too_long_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("families.sweep.attempt", lambda family: exit(3))
    assert run("llama", 60) == Outcome("unmade", "the process ended with exit code 3")
    monkeypatch.setattr("families.sweep.attempt", lambda family: __import__("time").sleep(60))
    assert run("llama", 0.1) == Outcome("unmade", "not done within 0 s")


def test_a_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def attempted(family: str, seconds: float) -> Outcome:
        tried.append(family)
        if family == "c" and tried.count("c") == 1:
            raise KeyboardInterrupt
        return Outcome("proved")

    monkeypatch.setattr("families.sweep.run", attempted)
    table = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        sweep(["a", "b", "c"], table, 1, again=False)
    sweep(["a", "b", "c"], table, 1, again=False)
    assert tried == ["a", "b", "c", "c"]
    assert read(table) == Results(transformers.__version__, dict.fromkeys("abc", Outcome("proved")))
    sweep(["b"], table, 1, again=True)
    assert tried[-1] == "b"
    monkeypatch.setattr(transformers, "__version__", "0")
    sweep(["a"], table, 1, again=False)  # what another version did says nothing of this one
    assert list(read(table).families) == ["a"]


def test_families_that_are_refused_alike_share_an_entry() -> None:
    refusals = {
        "one": "OneForCausalLM cannot be exported: its layers compute attention in code of the model's own",
        "two": "TwoForCausalLM cannot be exported: its layers compute attention in code of the model's own",
        "three": "ThreeForCausalLM: layer 0 keeps a state that is no key-value cache (LinearAttentionLayer)",
    }
    text = families(Results("1", {family: Outcome("refused", reason) for family, reason in refusals.items()}))
    assert "- one, two: its layers compute attention in code of the model's own" in text
    assert cause(refusals["three"]).startswith("layer 0 keeps")


def test_families_whose_decoders_alone_were_tried_are_marked() -> None:
    proved = families(Results("1", dict.fromkeys(("llama", "t5gemma", "whisper"), Outcome("proved"))))
    assert "\nllama, t5gemma (decoder), whisper (decoder).\n" in proved


def test_a_graph_that_is_not_the_model_is_no_refusal() -> None:
    wrong = Outcome("failed", "target on onnxruntime (ort): logits are 1 standard deviations off")
    text = families(Results("1", {"one": wrong, "two": Outcome("unmade", "TypeError: no such size")}))
    assert "0 are proved, 0 refused and 1 failed their proof" in " ".join(text.split())
    parts = text.partition("### Failed their proof")
    assert "- one: target on onnxruntime" in parts[2]
    assert "one" not in parts[0].partition("### Refused")[2]
    assert "- two: TypeError: no such size" in text


def test_a_tiny_model_has_a_layer_of_each_type() -> None:
    assert one_of_each(["full"] * 5) == ["full", "full"]
    assert one_of_each(["slide", "slide", "full"]) == ["slide", "full"]
    assert tiny("gemma3_text").layer_types == ["sliding_attention", "full_attention"]
    assert tiny("qwen2").hidden_size == 32
