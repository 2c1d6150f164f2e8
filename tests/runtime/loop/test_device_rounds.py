"""Rounds that a device runs whole, as the session sees them; a double drafts, verifies behind the protocol's back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.base import RoundNoise, RoundResult
from specexport.errors import EngineError
from specexport.runtime.loop.device_rounds import device_rounds
from specexport.runtime.policy.confidence import AcceptancePredictor, adaptive_schedule
from specexport.runtime.policy.controller import AdaptiveSchedule, RouteState
from specexport.runtime.policy.cost_model import CostPoint
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity
from specexport.runtime.policy.routes import POLICY, POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.costs import costs_at, time
from support.doubles import CONTRACT, FakeDecoder, check_invariant, fake_session, greedy_tokens
from support.refusals import refused

PROMPT = [5, 9, 200, 31, 7, 7, 90, 14, 3, 77, 120]


class FakeRounds:
    """Greedy rounds by the decoders' own steps, whatever the noise; `asked` records what it was given."""

    def __init__(self, target: FakeDecoder, draft: FakeDecoder) -> None:
        self.target, self.draft, self.drafts = target, draft, True
        self.asked: list[tuple[int, int, RoundNoise | None]] = []
        self.spoil: dict[str, Any] = {}

    def run(
        self, tokens: Sequence[int], num_draft_tokens: int, noise: RoundNoise | None, hidden: Any = None
    ) -> RoundResult:
        k, last = num_draft_tokens, len(tokens) - 1
        self.asked.append((len(tokens), k, noise))
        assert self.target.rows[:last].tolist() == list(tokens[:last])
        draft_tokens: list[int] = []
        for index in range(k):
            if index == 0:
                assert self.draft.rows[: last - 1].tolist() == list(tokens[: last - 1])
            fed, place = (draft_tokens[-1:], last + index) if index else (tokens[-2:], last - 1)
            draft_tokens.append(int(self.draft.step(fed, place)[-1].argmax()))
        best = self.target.step([tokens[-1], *draft_tokens], last).argmax(axis=1).tolist()
        count = next((index for index in range(k) if best[index] != draft_tokens[index]), k)
        return replace(RoundResult(draft_tokens, [0.5] * k, count, best[count]), **self.spoil)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Session, Session, FakeRounds]:
    """A session whose rounds the host runs, and one whose rounds the device runs, over equal models."""

    def decoders() -> tuple[FakeDecoder, FakeDecoder]:
        return FakeDecoder(seed=1), FakeDecoder(seed=1, noise=0.6)

    host = fake_session(tmp_path / "host", *decoders())
    target, draft = decoders()
    device = fake_session(tmp_path / "device", target, draft)
    rounds = FakeRounds(target, draft)
    return host, Session(device.bundle, replace(device.engine, rounds=rounds)), rounds


@pytest.mark.parametrize("k", [0, 1, 3, 4])
def test_both_ways_to_run_a_round_give_the_same(pair: tuple[Session, Session, FakeRounds], k: int) -> None:
    host, device, rounds = pair
    for length in (1, 2, 3, 9, 11):
        asked: dict[str, Any] = {"max_new_tokens": 24, "num_draft_tokens": k}
        one, other = host.generate(PROMPT[:length], **asked), device.generate(PROMPT[:length], **asked)
        assert one.tokens == other.tokens
        check_invariant(device._context)
        assert other.statistics.device_seconds > 0
        assert other.statistics.draft_seconds == other.statistics.target_seconds == 0
        if length > 1:
            assert one.statistics.accepted_by_position == other.statistics.accepted_by_position
    # What was drafted, and that a sequence of one token starts with a plain round.
    assert {drafted for length, drafted, _ in rounds.asked if length > 1} >= {k}
    assert [drafted for length, drafted, _ in rounds.asked if length == 1] == [0]


def test_a_prompt_that_is_scored_first(pair: tuple[Session, Session, FakeRounds]) -> None:
    host, device, rounds = pair
    found = device.generate(PROMPT, max_new_tokens=12, num_draft_tokens=3, prompt_logprobs=1)
    assert found.prompt_logprobs == host.score(PROMPT, likeliest=1).prompt_logprobs
    assert found.tokens == greedy_tokens(device.engine.target, PROMPT, 12)  # type: ignore[arg-type]
    assert rounds.asked
    check_invariant(device._context)


def test_greedy_requests_have_no_use_for_candidates_and_stay_on_the_device(
    pair: tuple[Session, Session, FakeRounds],
) -> None:
    _, device, rounds = pair
    device.generate(PROMPT, max_new_tokens=8, verification="spectr")
    assert rounds.asked
    for temperature, engine in ((0.0, device.engine), (1.0, None)):
        parameters = SamplingParameters(temperature=temperature, verification="spectr")
        assert device_rounds(device.engine, parameters, "model") is (engine and engine.rounds)


def test_any_top_k_stays_on_the_device(pair: tuple[Session, Session, FakeRounds]) -> None:
    device = pair[1]
    for top_k in (1, 1025, 10**400):
        assert device_rounds(device.engine, SamplingParameters(temperature=1.0, top_k=top_k), "model") is not None
        device.generate(PROMPT, max_new_tokens=4, temperature=1.0, top_k=top_k)


def test_noise_is_below_one_and_of_two_streams(pair: tuple[Session, Session, FakeRounds]) -> None:
    _, device, rounds = pair
    device.generate(PROMPT, max_new_tokens=20, temperature=1.0, top_k=7, seed=1, verification="token")
    for _, k, noise in rounds.asked:
        assert noise is not None
        assert (noise.verification, noise.sampling.tolist()) == ("token", [1.0, 7.0, 1.0, 0.0])
        assert len(noise.draft_noise) == k
        assert len(noise.noise) == k + 1
        assert noise.noise.dtype == noise.draft_noise.dtype == np.float32
        assert max(*noise.noise, *noise.draft_noise, 0.0) < 1.0
        assert not set(noise.noise.tolist()) & set(noise.draft_noise.tolist())


def test_a_uniform_next_to_one_is_not_rounded_up(
    pair: tuple[Session, Session, FakeRounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlmostOne:
        def random(self, count: int) -> np.ndarray:
            return np.full(count, np.nextafter(1.0, 0.0))

    monkeypatch.setattr("specexport.runtime.loop.device_rounds.noise_streams", lambda seed: (AlmostOne(), AlmostOne()))
    _, device, rounds = pair
    device.generate(PROMPT, max_new_tokens=5, temperature=1.0)
    given = rounds.asked[0][2]
    assert given is not None
    assert max(*given.noise, *given.draft_noise) < 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "ngram"},
        {"drafter": "ngram+model"},
        {"repetition_penalty": 1.3},
        {"banned_tokens": [3]},
        {"min_new_tokens": 2},
    ],
)
def test_what_the_device_cannot_do_the_host_does(
    pair: tuple[Session, Session, FakeRounds], options: dict[str, Any]
) -> None:
    host, device, rounds = pair
    assert (
        host.generate(PROMPT, max_new_tokens=16, **options).tokens
        == device.generate(PROMPT, max_new_tokens=16, **options).tokens
    )
    assert rounds.asked == []


@pytest.mark.parametrize("options", [{}, {"num_draft_tokens": 2}, {"route": "code"}], ids=str)
def test_a_policy_of_another_engine_does_not_move_rounds_to_the_host(
    pair: tuple[Session, Session, FakeRounds], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Lookups, which paid there, run on the host."""
    _, device, rounds = pair
    bundle, entry = device.bundle, RoutePolicy("on", "ngram+model", 2, "fixed", (0.9,), None)
    for engine in ("another", "fake"):
        made = Policy(POLICY_VERSION, bundle_identity(bundle), engine, "", 0.0, 0.9, entry, {"code": entry})
        write_decision(bundle, made, POLICY)
        Session(bundle, device.engine).generate(PROMPT, max_new_tokens=8, **options)
        assert bool(rounds.asked) == (engine == "another")
        rounds.asked.clear()
    assert [record.getMessage().partition(" with --engine ")[2] for record in caplog.records] == [
        f"another; with --engine fake it is ignored; to replace it, run specexport calibrate {bundle.root} "
        "--engine fake --prompts FILE"
    ]


def test_rounds_that_cannot_draft_decode_plainly_only(pair: tuple[Session, Session, FakeRounds]) -> None:
    host, device, rounds = pair
    rounds.drafts = False
    assert host.generate(PROMPT, max_new_tokens=9).tokens == device.generate(PROMPT, max_new_tokens=9).tokens
    assert rounds.asked == []
    assert (
        host.generate(PROMPT, max_new_tokens=9, speculate=False).tokens
        == device.generate(PROMPT, max_new_tokens=9, speculate=False).tokens
    )
    assert {k for _, k, _ in rounds.asked} == {0}


def test_the_capacity_ends_the_last_rounds(pair: tuple[Session, Session, FakeRounds]) -> None:
    host, device, rounds = pair
    prompt = (PROMPT * 4)[: CONTRACT.capacity - 7]
    assert host.generate(prompt).tokens == device.generate(prompt).tokens
    assert max(length + k for length, k, _ in rounds.asked) <= CONTRACT.capacity


@pytest.mark.parametrize(
    "spoil",
    [
        {"next_token": 258},
        {"next_token": -1},
        {"confidence": [0.5, math.nan, 0.5, 0.5]},
    ],
)
def test_logits_that_are_no_numbers_are_named(pair: tuple[Session, Session, FakeRounds], spoil: dict[str, Any]) -> None:
    host, device, rounds = pair
    rounds.spoil = spoil
    with refused(EngineError, "11"):
        device.generate(PROMPT, max_new_tokens=12)
    rounds.spoil = {}
    assert host.generate(PROMPT, max_new_tokens=12).tokens == device.generate(PROMPT, max_new_tokens=12).tokens


def test_close_gives_the_engine_back(pair: tuple[Session, Session, FakeRounds]) -> None:
    _, device, _ = pair
    closed: list[bool] = []
    with Session(device.bundle, replace(device.engine, close=lambda: closed.append(True))) as session:
        session.generate(PROMPT, max_new_tokens=2)
    assert closed == [True]


def adaptive(read: AcceptancePredictor | None) -> AdaptiveSchedule:
    rounds_of = tuple(map(time, (1.0, 1.1, 1.6, 2.4, 3.4)))
    costs = costs_at(CostPoint(8, rounds_of, time(0.0), rounds_of, (time(0.0),) * 5))
    entry = RoutePolicy("on", "model", 1, "adaptive", (0.6, 0.2), None)
    return adaptive_schedule(entry, costs, read, RouteState(), 4)


def test_an_adaptive_schedule_launches_the_best_number(pair: tuple[Session, Session, FakeRounds]) -> None:
    _, device, rounds = pair
    assert device.generate(PROMPT, max_new_tokens=2, schedule=adaptive(None)).tokens == greedy_tokens(
        device.engine.target, PROMPT, 2
    )  # type: ignore[arg-type]
    assert [k for _, k, _ in rounds.asked] == [1]


def test_the_host_runs_the_rounds_of_a_draft_whose_confidence_is_read(
    pair: tuple[Session, Session, FakeRounds],
) -> None:
    _, device, rounds = pair
    read = list[int]()
    schedule = adaptive(lambda index, logits: read.append(index) or 0.9)  # type: ignore[func-returns-value]
    assert device.generate(PROMPT, max_new_tokens=8, schedule=schedule).tokens == greedy_tokens(
        device.engine.target, PROMPT, 8
    )  # type: ignore[arg-type]
    assert read
    assert not rounds.asked
