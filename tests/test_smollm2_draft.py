"""The draft of SmolLM2 and how it is made: prompts, answers in batches, few tokens, and the draft that is shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from specexport.calibration.measuring.journal import Journal
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.tuning.answers import Answer
from support.real import DRAFT
from support.tiny import LLAMA, make_tokenizer, save_model
from transformers import AutoModelForCausalLM

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPTS = EXAMPLES / "prompts/smollm2"
ROUTES = ["code", "extract", "question", "rewrite", "summary"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The example's modules."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES / "train_smollm2_draft")
    import batched
    import library_prompts
    import small_vocabulary
    import train
    import write_answers

    return SimpleNamespace(
        batched=batched, prompts=library_prompts, vocabulary=small_vocabulary, train=train, write=write_answers
    )


@pytest.fixture(scope="module")
def held_out() -> dict[str, list[str]]:
    found = {}
    for path in sorted(PROMPTS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {line["route"] for line in lines} == {path.stem}
        found[path.stem] = [line["messages"][0]["content"] for line in lines]
    return found


def test_every_route_has_held_out_prompts(held_out: dict[str, list[str]]) -> None:
    assert list(held_out) == ROUTES
    assert all(len(texts) == len(set(texts)) == 60 for texts in held_out.values())


def test_no_held_out_prompt_is_trained_on(made: SimpleNamespace, held_out: dict[str, list[str]]) -> None:
    trained = {text for _, text, _ in made.prompts.prompts(False, 100_000)}
    assert len(trained) > 1000
    assert not trained & {text for texts in held_out.values() for text in texts}


def test_prompts_of_a_file_are_all_held_out_or_none(made: SimpleNamespace) -> None:
    found = list(made.prompts.pieces())
    files = {held: {piece.file for piece in found if piece.held_out == held} for held in (True, False)}
    assert files[True]
    assert not files[True] & files[False]


def test_answers_are_judged_on_files_that_are_not_trained_on(made: SimpleNamespace) -> None:
    rows = [
        made.train.Row(file, False, replace(an_answer([[5]], [[1.0]]), prompt=(number,)))
        for number, file in enumerate([f"{place % 200}.py" for place in range(600)])
    ]
    parts = made.train.parted([*rows, *(replace(row, sampled=True) for row in rows)])
    files = {part: {one.prompt[0] % 200 for one in answers} for part, answers in parts.items()}
    assert all(files.values())
    assert not files["training"] & (files["judging"] | files["choosing"])
    assert not files["judging"] & files["choosing"]
    assert len(parts["training"]) == 2 * 3 * len(files["training"])
    assert len(parts["judging"]) == 3 * len(files["judging"])  # greedy ones alone


def test_a_journal_of_answers_is_read_as_it_was_written(made: SimpleNamespace, tmp_path: Path) -> None:
    path, rows = tmp_path / "answers.jsonl", [torch.arange(64), torch.arange(64) + 1]
    packed = dict(
        ids=made.write.packed([row.int() for row in rows]), logprobs=made.write.packed([-row.half() for row in rows])
    )
    with Journal.open(path, made.write.HEADER, made.write.FOREIGN) as journal:
        for number in (1, 2):
            journal.add(f"code {number}", {"route": "code", "file": "a.py", "prompt": [3], "tokens": [0, 1], **packed})
    first, second = made.train.read([path])
    assert (first.file, first.sampled, second.sampled) == ("a.py", False, True)
    assert (first.answer.prompt, first.answer.tokens) == ((3,), (0, 1))
    assert first.answer.ids[1, :2].tolist() == [1, 2]
    assert first.answer.logprobs[1, :2].tolist() == [-1, -2]


def test_routes_make_what_they_say(made: SimpleNamespace) -> None:
    import random

    piece = made.prompts.Piece(
        "a.py", "a.join_all", "Return the string that joins all of the given parts, with a blank between. " * 2,
        'def join_all(parts):\n    """Joins."""\n    return " ".join(parts)', ("parts",),
    )  # fmt: skip
    texts = {route: {made.prompts.MAKERS[route](piece, random.Random(seed)) for seed in range(40)} for route in ROUTES}
    assert all(len(found) > 3 and None not in found for found in texts.values())
    assert all("a.join_all" in text for text in texts["question"])
    assert any("strign" in text for text in texts["rewrite"])  # a typo to correct
    (bare,) = (text for text in texts["code"] if text.startswith("Write a docstring"))
    assert '"""' not in bare


# 5 requests through 3 slots, of both banks: a slot's old rows must not be seen by the next.
def test_answers_of_a_batch_are_those_of_each_alone(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.batched, "SHORT", 6)
    config = {**LLAMA, "tie_word_embeddings": True, "initializer_range": 0.05}
    folder = save_model(tmp_path / "tiny", config=config)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rng = np.random.default_rng(0)
    prompts = {str(place): rng.integers(2, 288, 3 + 2 * place).tolist() for place in range(5)}
    requests: Iterator[Any] = iter(made.batched.Answering(key, "code", prompt, 0.0) for key, prompt in prompts.items())
    found = {one.key: one for one in made.batched.answers(made.batched.Batched(folder, 3, 40), requests, 12, 0)}
    assert found.keys() == prompts.keys()
    for key, one in found.items():
        whole = torch.tensor([prompts[key] + one.tokens])
        with torch.no_grad():
            rows = torch.log_softmax(model(whole).logits[0, len(prompts[key]) - 1 : -1], -1)
        ids, logprobs = torch.stack(one.ids).long(), torch.stack(one.logprobs).float()
        assert ids[:, 0].tolist() == one.tokens
        # bf16 has 8 bits, and the logits differ by some units: 0.1 is far above its rounding, far below a wrong row's.
        assert (rows.gather(1, ids) - logprobs).abs().mean() < 0.1
        assert len(one.tokens) == 12 or one.tokens[-1] == model.config.eos_token_id


def an_answer(ids: list[list[int]], probs: list[list[float]]) -> Answer:
    tokens = tuple(row[0] for row in ids)
    return Answer("code", (0, 40), tokens, np.array(ids, np.int32), np.log(np.array(probs)).astype(np.float16))


def test_a_cut_tokenizer_has_the_same_tokens(made: SimpleNamespace) -> None:
    target = make_tokenizer()
    parsed = json.loads(target.backend_tokenizer.to_str())
    frequent = len(target) - 1
    kept = made.vocabulary.choose([an_answer([[frequent]], [[1.0]])], parsed, len(target) - 20)
    assert kept == sorted(kept)
    assert {0, 1, frequent} <= set(kept)
    small = made.vocabulary.cut(target, kept)
    assert [small.convert_ids_to_tokens(place) for place in range(len(small))] == target.convert_ids_to_tokens(kept)
    assert (small.bos_token, small.eos_token) == (target.bos_token, target.eos_token)
    text = "def add(a, b): return the quick"
    assert small.decode(small(text)["input_ids"]) == text
    ids = made.vocabulary.Ids.between(target, small)
    assert ids.exact[kept].tolist() == list(range(len(kept)))
    lost = next(token for token in range(len(target)) if token not in kept)
    assert ids.exact[lost] == -1
    assert target.decode([lost]).endswith(small.decode([int(ids.to_draft[lost])]))


def test_rows_keep_what_the_draft_has(made: SimpleNamespace) -> None:
    target = make_tokenizer()
    kept = [token for token in range(len(target)) if token != 287]
    ids = made.vocabulary.Ids.between(target, made.vocabulary.cut(target, kept))
    answer = an_answer([[5, 287, 7], [287, 6, 5]], [[0.5, 0.25, 0.1], [0.5, 0.3, 0.1]])
    found = ids.translate(answer)
    assert found.ids[0, :2].tolist() == [5, 7]
    assert found.ids[1, :2].tolist() == [6, 5]
    assert np.exp(found.logprobs[0, :2]) == pytest.approx([0.5 / 0.75, 0.1 / 0.75], rel=0.01)
    assert (found.logprobs[:, 2] <= -20).all()
    assert all(len(set(row)) == len(row) for row in found.ids.tolist())
    assert found.tokens[0] == 5
    assert found.tokens[1] < 287
    assert ids.to_judge(answer).ids[:, 0].tolist() == [5, -1]


# The target's tokens, of which the draft has few merges: its own tokenizer would spell them otherwise.
ASKED = "<|im_start|> user Ċ What Ġdoes Ġ` os . path . join ` Ġdo Ġin ĠPython ? <|im_end|> Ċ <|im_start|>"
ANSWER = "The Ġ` os . path . join ` Ġfunction Ġis Ġa Ġfunction Ġin Ġthe ĠPython Ġstandard Ġlibrary Ġthat Ġis Ġused Ġto"


def test_the_shipped_draft_knows_how_such_answers_go_on() -> None:
    draft = find_checkpoint(str(DRAFT))
    vocabulary = draft.tokenizer.get_vocab()
    assert len(vocabulary) == draft.config.vocab_size == 6144
    prompt, answer = ([vocabulary[token] for token in text.split()] for text in (ASKED, ANSWER))
    with torch.no_grad():
        logits = draft.load("fp32")(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    told = torch.log_softmax(logits, -1)[range(len(answer)), answer].mean()
    # Chosen after -1.6 was seen, and -2.5 with rotary halves as GGUF orders them; a draft that knows nothing has -8.7.
    assert told > -2


@pytest.mark.real
@pytest.mark.slow
def test_the_shipped_draft_helps_its_target(smollm2_bundle: Path, held_out: dict[str, list[str]]) -> None:
    from specexport.runtime.load import load

    with load(smollm2_bundle) as session:
        rounds = emitted = 0
        for text in held_out["question"][:4]:
            chat = [{"role": "user", "content": text}]
            expected = session.generate(chat, max_new_tokens=48, speculate=False)
            session.reset()
            answer = session.generate(chat, max_new_tokens=48, drafter="model", num_draft_tokens=3)
            assert answer.tokens == expected.tokens
            rounds, emitted = rounds + answer.statistics.rounds, emitted + answer.statistics.emitted
    # 1 is a draft of which nothing is accepted; the bound was set before any figure of this draft was seen.
    assert emitted > 1.3 * rounds
