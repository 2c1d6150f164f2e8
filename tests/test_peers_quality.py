"""What benchmarks/peers compares systems on: prompts, logits, and how far they are from the fp32 model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import refused

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks/peers"))
from divergence import Divergence, compare_rows, measure, shared_prefix
from process import RunnerError
from prompts import end_tokens, read_requests
from protocol import reply


class Finished:
    def __init__(self) -> None:
        self.finished: dict[str, Any] = {}

    def add(self, key: str, row: dict[str, Any]) -> None:
        self.finished[key] = json.loads(json.dumps(row))


def test_divergence_is_that_of_the_other_from_the_exact_model() -> None:
    with np.errstate(divide="ignore"):
        exact, other = (np.log(np.array(rows, np.float32)) for rows in ([[0.5, 0.5, 0]], [[0.25, 0.5, 0.25]]))
    nats, agreed = compare_rows(exact + 3, other - 5)  # logits, not probabilities
    assert nats == pytest.approx(0.5 * np.log(2), rel=1e-6)  # the other way it would be without end
    assert agreed == 0
    many = np.random.default_rng(0).normal(size=(130, 7)).astype(np.float32)
    assert compare_rows(many, many) == (0, 130)
    moved = many + np.eye(7, dtype=np.float32)[0]
    whole = sum(compare_rows(one[None], two[None])[0] for one, two in zip(many, moved, strict=True))
    assert compare_rows(many, moved)[0] == pytest.approx(whole)


class Shows:
    """Logits that are its seed's: rows that all sequences share, and others."""

    def __init__(self, name: str, scale: float, vocab: int = 5) -> None:
        self.name, self.scale, self.vocab, self.asked = name, scale, vocab, 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        rows = [np.arange(self.vocab) * (0.0 if token == 1 else self.scale) for token in request["logits_of"]]
        np.array(rows, np.float32).tofile(request["file"])
        return {"rows": len(rows), "columns": self.vocab}


def test_divergence_is_over_what_sequences_do_not_share(tmp_path: Path) -> None:
    assert shared_prefix([[1, 1, 2], [1, 1, 3, 4], [1, 1, 2]]) == 2
    assert shared_prefix([[1, 2]]) == shared_prefix([[1, 2], [1, 2]]) == 0  # never all of it
    exact, other, kept = Shows("transformers", 1.0), Shows("peer", 2.0), Finished()
    sequences = [[1, 1, 2], [1, 1, 3, 4]]
    found = measure(exact, [exact, other], sequences, tmp_path, kept)
    row = compare_rows(np.arange(5, dtype=np.float32)[None], np.arange(5, dtype=np.float32)[None] * 2)[0]
    assert found["transformers"] == Divergence(0, 1, 3)
    assert (found["peer"].nats, found["peer"].agreement, found["peer"].rows) == (pytest.approx(row), 1, 3)
    assert (exact.asked, other.asked, list(tmp_path.iterdir())) == (2, 2, [])
    assert measure(exact, [exact, other], sequences, tmp_path, kept) == found
    assert (exact.asked, other.asked) == (2, 2)


def test_systems_of_other_vocabularies_are_not_compared(tmp_path: Path) -> None:
    with refused(RunnerError, "5"):
        measure(Shows("transformers", 1.0), [Shows("peer", 1.0, vocab=6)], [[2, 3]], tmp_path)


def test_a_runner_writes_a_row_of_logits_a_token(tmp_path: Path) -> None:
    class Runner:
        def logits_of(self, tokens: list[int]) -> Any:
            return np.array([[token, token + 0.5] for token in tokens if token], np.float32)

    file = tmp_path / "logits"
    asked = {"logits_of": [3, 4, 5], "file": str(file)}
    assert reply(Runner(), asked) == {"rows": 3, "columns": 2}  # type: ignore[arg-type]
    assert np.fromfile(file, np.float32).tolist() == [3, 3.5, 4, 4.5, 5, 5.5]
    with refused(ValueError, "shape"):
        reply(Runner(), asked | {"logits_of": [3, 0]})  # type: ignore[arg-type]


def test_messages_get_the_template_and_an_end(pair: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "the lazy dog"}]
    lines = [{"route": "chat", "messages": messages}, {"route": "text", "prompt": "<user>the lazy dog<assistant>"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chat, text = read_requests(pair.target, file, 4, 96)
    assert (chat.route, text.route) == ("chat", "text")
    assert (len(chat.tokens) > 4, text.tokens) == (True, chat.tokens[:4])
    assert (chat.ends, text.ends) == (end_tokens(pair.target), frozenset())
    assert end_tokens(pair.target) == {1}
    code, prose, *_ = read_requests(pair.target, None, 4, 96)
    assert (code.route, prose.route) == ("code", "prose")


def test_the_tasks_are_those_that_the_docs_name() -> None:
    lines = (Path(__file__).parent.parent / "examples/prompts/tasks.jsonl").read_text(encoding="utf-8").splitlines()
    routes = [json.loads(line)["route"] for line in lines]
    assert routes == ["question", "rewrite", "extract", "code"] * 7
