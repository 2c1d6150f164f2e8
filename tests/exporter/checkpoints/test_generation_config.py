"""What a checkpoint says of generating: defaults of the bundle where requests have the same, else named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import specexport
import torch
from click.testing import CliRunner
from specexport.bundle import Defaults
from specexport.cli import main
from specexport.errors import CheckpointError
from specexport.exporter.build import build
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.generation_config import APPLIED, NEUTRAL, SAMPLING, WITHOUT_EFFECT, defaults_of
from specexport.exporter.options import BuildOptions
from specexport.runtime.proofs.equality import check_equality
from support.refusals import refused
from support.tiny import edit_json, save_checkpoint
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import GenerationMixin

pytestmark = pytest.mark.slow

PROMPT = "def add(a, b):"
MOST = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("checkpoints") / "model", seed=2)


def answer(folder: Path, **options: Any) -> list[int]:
    """transformers' greedy one."""
    ids = torch.tensor([find_checkpoint(str(folder)).tokenizer(PROMPT).input_ids])
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        found = model.generate(
            ids, do_sample=False, max_new_tokens=MOST, attention_mask=torch.ones_like(ids), **options
        )
    return list(found[0, ids.shape[1] :].tolist())


def bundle_of(folder: Path, root: Path) -> Path:
    build(str(folder), str(folder), root, BuildOptions(max_seq_len=64))
    return root


def settings_of(first: list[int]) -> dict[str, dict[str, Any]]:
    """Settings that change an answer that begins with these tokens."""
    return {
        "penalty": dict(repetition_penalty=0.2),
        "bad words": dict(bad_words_ids=[[first[0]], [first[2]], [1]], suppress_tokens=[first[1]]),
        "all": dict(repetition_penalty=1.3, suppress_tokens=[first[0]], min_new_tokens=5),
    }


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("generation_config.json", "penalty"),
        ("generation_config.json", "bad words"),
        ("generation_config.json", "all"),
        ("config.json", "all"),
    ],
)
def test_a_bundle_answers_as_transformers_does(place: str, kind: str, folder: Path, tmp_path: Path) -> None:
    plain = answer(folder)
    copy = save_checkpoint(tmp_path / "model", seed=2)
    if place == "config.json":
        (copy / "generation_config.json").unlink()
    settings = settings_of(plain)[kind]
    edit_json(copy / place, **settings)
    expected = answer(copy)
    assert expected != plain
    with specexport.load(bundle_of(copy, tmp_path / "bundle"), threads=1) as session:
        made = session.generate(PROMPT, max_new_tokens=MOST, num_draft_tokens=4)
        assert list(made.tokens) == expected
        assert made.statistics.drafted > 0
        assert list(session.generate(PROMPT, max_new_tokens=MOST, speculate=False).tokens) == expected
        asked = specexport.SamplingParameters(max_new_tokens=MOST)
        assert list(session.generate(PROMPT, asked).tokens) == expected
        off = dict(repetition_penalty=1.0, banned_tokens=(), min_new_tokens=0)
        assert list(session.generate(PROMPT, max_new_tokens=MOST, **off).tokens) == plain
        assert check_equality(session, session.encode(PROMPT), MOST).passed


def test_a_minimum_gives_way_to_a_shorter_answer_and_to_a_grammar(folder: Path) -> None:
    given = Defaults(min_new_tokens=9)
    asked = specexport.SamplingParameters
    assert asked(max_new_tokens=4).with_defaults(given).min_new_tokens == 4
    assert asked(max_new_tokens=40).with_defaults(given).min_new_tokens == 9
    assert asked(min_new_tokens=2).with_defaults(given).min_new_tokens == 2
    assert asked(grammar=specexport.Grammar.choice(["a"])).with_defaults(given).min_new_tokens == 0


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        (dict(no_repeat_ngram_size=3), "no_repeat_ngram_size 3"),
        (dict(begin_suppress_tokens=[5, 7]), "begin_suppress_tokens [5, 7]"),
        (dict(max_new_tokens=64), "max_new_tokens 64"),
        (dict(cache_implementation="quantized"), 'cache_implementation "quantized"'),
        (dict(chat_format="chatml"), 'chat_format "chatml"'),
        (dict(bad_words_ids=[[3], [4, 5]]), "bad_words_ids [[4, 5]]"),
    ],
)
def test_what_no_request_can_have_is_named(settings: dict[str, Any], left_out: str) -> None:
    assert defaults_of("m", settings).left_out == (left_out,)


def test_every_setting_that_transformers_reads_for_its_output_has_its_place() -> None:
    """What is in none of the lists is named as left out: so none of those that change logits may be in a wrong one."""
    read = set(GenerationMixin._get_logits_processor.__code__.co_names) & set(vars(GenerationConfig()))
    assert len(read) > 20
    assert not read & WITHOUT_EFFECT - {"eos_token_id", "renormalize_logits", "remove_invalid_values", "use_cache"}
    assert {"temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "eta_cutoff"} <= read & {*SAMPLING}
    assert {"repetition_penalty", "suppress_tokens", "bad_words_ids", "min_new_tokens"} <= read & {*APPLIED}


@pytest.mark.parametrize(
    "settings",
    [
        dict(repetition_penalty="high"),
        dict(repetition_penalty=-1.0),
        dict(suppress_tokens=5),
        dict(suppress_tokens=["a"]),
        dict(bad_words_ids=[3]),
        dict(min_new_tokens=2.5),
        dict(stop_strings=[""]),
    ],
)
def test_values_that_no_setting_can_have(settings: dict[str, Any]) -> None:
    with refused(CheckpointError, "generation_config.json"):
        defaults_of("m", settings)


def test_build_and_inspect_tell_all_of_it(folder: Path, tmp_path: Path) -> None:
    copy, bundle = save_checkpoint(tmp_path / "model", seed=2), str(tmp_path / "bundle")
    first = answer(folder)[0]
    edit_json(
        copy / "generation_config.json",
        repetition_penalty=1.3,
        suppress_tokens=[first, 9, 500],
        no_repeat_ngram_size=3,
        do_sample=True,
        top_p=0.9,
    )
    expected = [
        f"repetition_penalty 1.3, banned_tokens {first} 9: for requests that do not say otherwise",
        "do_sample true, top_p 0.9: recommended for sampling; requests have to say it",
        "no_repeat_ngram_size 3: left out, nothing applies it",
    ]
    run = CliRunner()
    done = run.invoke(main, ["build", "--target", str(copy), "--max-seq-len", "64", "-o", bundle])
    assert done.exit_code == 0, done.output
    for text in (done.stderr, run.invoke(main, ["inspect", bundle]).stdout):
        shown = [line for line in text.splitlines() if line.startswith("defaults")]
        assert [line.removeprefix("defaults   ") for line in shown] == expected
    asked = ["generate", bundle, "--prompt", PROMPT, "--max-new-tokens", str(MOST), "--json", "--threads", "1"]
    found = json.loads(run.invoke(main, asked).stdout)["tokens"]
    assert found == answer(copy, no_repeat_ngram_size=0)
    assert (
        json.loads(run.invoke(main, [*asked, "--repetition-penalty", "1", "--ban-token", "5"]).stdout)["tokens"]
        != found
    )


def test_what_changes_nothing_is_not_named() -> None:
    neutral = NEUTRAL | dict(repetition_penalty=1.0, bad_words_ids=[], suppress_tokens=None, watermarking_config=None)
    without = dict.fromkeys(WITHOUT_EFFECT, 3) | dict(
        cache_implementation="hybrid", do_sample=False, token_healing=False
    )
    assert defaults_of("m", neutral | without) == Defaults()
