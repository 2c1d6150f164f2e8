"""Whole rounds on the device, in every order: rules, numbers of draft tokens and spans that alternate, and what ends a
round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract, SharedVocabulary
from specexport.engines.base import RoundResult
from specexport.errors import EngineError
from support.fake_engine import OnDevice, executed, noise
from support.micro import VOCAB, Micro, MicroDecoder, host_engine, micro_bundle
from support.refusals import refused

pytestmark = pytest.mark.usefixtures("short_spans")
CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
TARGET, DRAFT = Micro(), Micro(noise=2.0)
TOKENS: list[int] = np.random.default_rng(11).integers(0, VOCAB, 1100).tolist()
VERSIONS = {"onnx": "10.16.1", "rows": "10.3.0"}


class Made(OnDevice):
    """A bundle of micro models: a session whose rounds run on the device, and one on the host in numpy."""

    def __init__(
        self,
        root: Path,
        contract: Contract = CONTRACT,
        dialect: str = "onnx",
        draft: Micro | None = DRAFT,
        vocabulary: SharedVocabulary | None = None,
        target: Micro = TARGET,
    ) -> None:
        root.mkdir(exist_ok=True)
        bundle = micro_bundle(root, contract, target, draft, has_draft=draft is not None, dialect=dialect)
        if vocabulary is not None:
            numbers = np.arange(vocabulary.shared_tokens)
            to_draft = np.arange(VOCAB) % (draft or target).vocab_size
            np.savez(root / vocabulary.maps, to_draft=to_draft, shared=np.stack([numbers, numbers]))
            one = replace(bundle.manifest.drafts[0], shared_vocabulary=vocabulary)
            bundle = replace(bundle, manifest=replace(bundle.manifest, drafts=(one,)))
        host = host_engine(contract, target, draft, draft is not None)
        super().__init__(bundle, host, dialect, VERSIONS[dialect])
        self.target = MicroDecoder(target, contract)
        self.draft = MicroDecoder(draft, contract) if draft else None

    def same(self, prompt: list[int], **options: Any) -> Any:
        """Generate by both, and compare all that does not depend on time."""
        asked: dict[str, Any] = {"stop_token_ids": (), **options}
        ours, theirs = self.session.generate(prompt, **asked), self.host.generate(prompt, **asked)
        assert ours.tokens == theirs.tokens, asked
        assert ours.finish_reason == theirs.finish_reason
        assert ours.statistics.accepted_by_position == theirs.statistics.accepted_by_position
        return ours

    def feed(self, count: int) -> None:
        """Both models hold `TOKENS[:count]` but for the last token, on device and host; rubbish lies behind."""
        for ours, theirs in zip(self.decoders, (self.target, self.draft), strict=True):
            assert theirs is not None
            for decoder in (ours, theirs):
                decoder.overwrite_rows(0, 0.0)  # type: ignore[attr-defined]
                decoder.feed(TOKENS[: count - 1], 0)  # type: ignore[attr-defined]
            ours.overwrite_rows(count - 1, 1e4)

    def expected(self, count: int, k: int) -> RoundResult:
        """A greedy round behind `TOKENS[:count]`, in numpy."""
        drafted: list[int] = []
        confidence = []
        assert self.draft is not None
        for index in range(k):
            fed = TOKENS[count - 2 : count] if not index else drafted[-1:]
            logits = self.draft.step(fed, count + index - len(fed))[-1]
            drafted.append(int(logits.argmax()))
            confidence.append(float(np.exp(logits - logits.max()).sum() ** -1))
        best = self.target.step([TOKENS[count - 1], *drafted], count - 1).argmax(axis=1).tolist()
        accepted = next((index for index in range(k) if best[index] != drafted[index]), k)
        return RoundResult(drafted, confidence, accepted, best[accepted])


@pytest.fixture(scope="module", params=["onnx", "rows"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("bundle"), dialect=request.param)


@pytest.mark.parametrize("rule", ["greedy", "block", "token"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_passes_of_a_round(made: Made, rule: str, k: int) -> None:
    made.rounds.run(TOKENS[:20], k, noise(k, rule))  # everything is bound
    del made.rounds._replay._graphs[rule, k, 32]
    made.fresh()
    made.rounds.run(TOKENS[:20], k, noise(k, rule))
    made.session.reset()
    dialect = made.engine.dialect
    draft: list[str] = []
    for index in range(k):
        # At width 1, a draft reads the whole cache.
        draft += [f"draft-{dialect} tokens[1, {1 if index else 2}] columns[{64 if index else 32}]", "select_best"]
    accept = ("accept_best" if rule == "greedy" else "accept_drawn") if k else "select_best"
    expected = [*draft, f"target-{dialect} tokens[1, {k + 1}] columns[32]", accept]
    for prefix in ("", "captured "):
        assert executed(made.device.log, prefix) == expected
    whole = [line for line in made.device.log if not line.startswith("captured")]
    assert whole[-3:] == ["wait", "capture", "end of capture"]
    assert whole.count("wait") == 1


def test_one_launch_whatever_the_round(made: Made) -> None:
    made.fresh()
    for rule, k in (("greedy", 0), ("greedy", 2), ("block", 4), ("token", 1), ("token", 0)):
        for length in (12, 9):
            made.device.log.clear()
            made.rounds.run(TOKENS[:length], k, noise(k, rule))
        assert made.device.log == ["launch", "wait"]
    made.session.reset()


def test_what_is_captured_at_load(made: Made) -> None:
    """Rounds of every k and span, greedy and sampled, and prompt chunks of both models."""
    assert made.at_load.count("capture") == 3 * 5 * 2 + 2 * 3
    made.fresh()
    for span in (16, 32, 64):
        for k in range(5):
            for given in (None, noise(k)):
                made.rounds.run(TOKENS[: span - k], k, given)
                made.rounds.run(TOKENS[: span // 2 + 1], k, given)
    for decoder in made.decoders:
        for position in range(49):
            decoder.feed(TOKENS[:16], position)
            decoder.feed(TOKENS[:1], position)
    assert set(made.device.log) == {"launch", "wait"}
    made.session.reset()


def test_the_span_of_a_round_at_its_boundaries(made: Made) -> None:
    """Of k draft tokens behind n, n + k rows are looked at and written."""
    made.fresh()
    for end in (15, 16, 17, 31, 32, 33, 64):
        for k in (0, 1, 4):
            made.feed(end - k)
            ours, expected = made.rounds.run(TOKENS[: end - k], k, None), made.expected(end - k, k)
            assert replace(ours, confidence=[]) == replace(expected, confidence=[]), (end, k)
            assert np.allclose(ours.confidence, expected.confidence, atol=1e-5)
    made.session._context.forget()


def test_requests_of_every_kind_one_after_the_other(made: Made) -> None:
    """Graphs of all rules, widths and spans are replayed in turns, with rounds of the host between them."""
    made.fresh()
    rng = np.random.default_rng(3)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 1.3, "verification": "token"},
        {"temperature": 0.8, "top_k": 9, "top_p": 0.95, "min_p": 0.01},
        {"temperature": 1.0, "verification": "token", "top_k": 5},
        {"drafter": "ngram"},
        {"drafter": "ngram+model", "temperature": 0.9},
        {"repetition_penalty": 1.3},
        {"speculate": False},
        {"speculate": False, "temperature": 1.0},
    ]
    drafted = 0
    for seed in range(60):
        kind = kinds[int(rng.integers(len(kinds)))]
        start = int(rng.integers(40))
        prompt = TOKENS[start : start + int(rng.integers(2, 40))]
        options = {"max_new_tokens": int(rng.integers(1, 14)), "seed": seed, **kind}
        if "speculate" not in kind:
            options["num_draft_tokens"] = int(rng.integers(0, 5))
        drafted += made.same(prompt, **options).statistics.drafted
    assert drafted > 100


def test_a_cancelled_request_in_the_middle_of_each_kind(made: Made) -> None:
    made.fresh()
    for options in ({}, {"temperature": 1.0, "seed": 3}, {"speculate": False}, {"drafter": "ngram"}):
        for count in (1, 3):
            for session in (made.session, made.host):
                stream = session.stream(TOKENS[:21], max_new_tokens=30, stop_token_ids=(), **options)  # type: ignore[arg-type]
                assert len(list(islice(stream, count))) == count
                stream.close()
            made.same(TOKENS[:23], max_new_tokens=12, seed=1, temperature=1.0)


def test_without_a_draft(tmp_path: Path) -> None:
    made = Made(tmp_path / "bundle", draft=None)
    assert made.engine.draft is None
    assert not made.rounds.drafts
    assert not [line for line in made.at_load if "the draft's" in line]
    assert made.at_load.count("capture") == 3 * 2 + 3
    assert executed(made.at_load)[:2] == ["target-onnx tokens[1, 1] columns[16]", "select_best"]
    for options in (
        {"speculate": False},
        {"speculate": False, "temperature": 1.0, "seed": 4},
        {},
        {"drafter": "ngram"},
    ):
        made.same([1, 2, 3, 1, 2, 3, 1], max_new_tokens=12, **options)


def other_ids() -> Iterator[Any]:
    fewer, more, same = VOCAB - 3, VOCAB + 4, VOCAB
    for size in (fewer, more):
        yield pytest.param(Micro(vocab_size=size, noise=2.0), None, id=f"{size} ids")
    for size in (fewer, more, same):
        shared = min(size, VOCAB) - 1
        yield pytest.param(
            Micro(vocab_size=size, noise=2.0),
            SharedVocabulary("graphs/maps.npz", shared, VOCAB, size),
            id=f"another tokenizer of {size}",
        )


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "vocabulary"), list(other_ids()))
def test_a_draft_whose_ids_are_not_the_targets(
    tmp_path: Path, draft: Micro, vocabulary: SharedVocabulary | None
) -> None:
    """The device would feed the target ids of another tokenizer, or read beyond a row: the host drafts, the device
    decodes plainly.
    """
    made = Made(tmp_path / "bundle", draft=draft, vocabulary=vocabulary)
    assert not made.rounds.drafts
    assert not [line for line in made.at_load if "the draft's probabilities" in line]
    asked: list[int] = []
    run = made.rounds.run
    made.rounds.run = lambda tokens, k, given, hidden: asked.append(k) or run(tokens, k, given)  # type: ignore[method-assign,func-returns-value]
    assert made.same(TOKENS[:9], max_new_tokens=20).statistics.drafted > 0
    made.same(TOKENS[:9], max_new_tokens=20, temperature=1.0, seed=2)
    assert asked == []
    made.same(TOKENS[:9], max_new_tokens=5, speculate=False)
    assert asked == [0] * 5


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("sampled", [False, True])
def test_logits_of_the_target_that_are_no_numbers(made: Made, k: int, sampled: bool) -> None:
    made.feed(20)
    made.decoders[0].overwrite_rows(3, np.nan)
    result = made.rounds.run(TOKENS[:20], k, noise(k) if sampled else None)
    assert (result.num_accepted, result.next_token) == (0, VOCAB)
    assert not np.isnan(result.confidence).any()
    made.session._context.forget()


@pytest.mark.parametrize("sampled", [False, True])
def test_logits_of_the_draft_that_are_no_numbers(made: Made, sampled: bool) -> None:
    made.feed(20)
    made.decoders[1].overwrite_rows(3, np.nan)
    result = made.rounds.run(TOKENS[:20], 3, noise(3) if sampled else None)
    assert np.isnan(result.confidence).all()
    assert all(0 <= token < VOCAB for token in result.draft_tokens), "the target is fed them all the same"
    made.session._context.forget()


@pytest.mark.parametrize(
    ("num_accepted", "next_position", "fits"),
    [
        (0, 20, True),
        (2, 22, True),
        (3, 23, True),
        (4, 24, False),
        (-1, 19, False),
        (2, 21, False),
        (2, 23, False),
        (2, 2, False),
    ],
)
def test_a_round_that_went_wrong_is_not_believed(made: Made, num_accepted: int, next_position: int, fits: bool) -> None:
    rounds = made.rounds
    rounds._num_accepted.host[0], rounds._next_position.host[0], rounds._next_token.host[0] = (
        num_accepted,
        next_position,
        5,
    )
    if fits:
        assert rounds._result(3, 19).num_accepted == num_accepted
        return
    with refused(EngineError, "19", "3"):
        rounds._result(3, 19)


@pytest.mark.parametrize(
    "function", ["cuGraphInstantiate", "cuStreamBeginCapture", "cuGraphLaunch", "cuEventSynchronize", "cuMemcpyAsync"]
)
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (700, "the CUDA driver refused {}: CUDA_ERROR_ILLEGAL_ADDRESS"),
        (2, r"out of device memory in {}: 102\d\.\d MiB of 1\.0 GiB free; lower --max-seq-len"),
    ],
)
def test_a_driver_that_fails_for_once(made: Made, function: str, status: int, message: str) -> None:
    """One line, and the session goes on: what the failing round has written is dead."""
    made.fresh()
    made.rounds._replay._graphs = {key: graph for key, graph in made.rounds._replay._graphs.items() if key[1] != 3}
    made.device.driver.failures[function] = status
    try:
        with pytest.raises(EngineError, match=message.format(function)):
            made.session.generate(TOKENS[:20], max_new_tokens=9, stop_token_ids=(), num_draft_tokens=3)
    finally:
        made.device.driver.failures.clear()
    made.same(TOKENS[:20], max_new_tokens=9, num_draft_tokens=3)
    made.same(TOKENS[:22], max_new_tokens=9, num_draft_tokens=3, temperature=1.0, seed=1)
