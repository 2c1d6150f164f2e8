"""Drafts that read the target's hidden states, in rounds on the device: the tokens are those of host rounds on ONNX
Runtime, and whatever a request does, cache rows are those of a fresh pass.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.errors import EngineError
from specexport.runtime.session import Session
from specexport.runtime.state.hidden_rows import HiddenDecoder
from support.fake_device import FakeDevice
from support.fake_engine import OnDevice, executed, noise
from support.micro import VOCAB
from support.micro_hidden import GIVEN, KEPT, hidden_bundle, host_hidden_engine, open_hidden
from support.refusals import refused
from support.rounds import Wants

pytestmark = pytest.mark.usefixtures("short_spans")
CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
TOKENS: list[int] = np.random.default_rng(11).integers(0, VOCAB, 64).tolist()
RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_k": 9, "verification": "token", "seed": 4},
]


class Made(OnDevice):
    def __init__(self, root: Path, kept: list[int] | None, dialect: str, version: str) -> None:
        bundle = hidden_bundle(root, CONTRACT, kept, noise=0.02, dialect=dialect)
        super().__init__(bundle, host_hidden_engine(bundle), dialect, version, policy=False)
        self.pass_by_pass = Session(self.bundle, replace(self.engine, rounds=None), policy=False)
        self._fresh = open_hidden(bundle)

    @property
    def draft(self) -> HiddenDecoder:
        draft = self.session._context.draft
        assert isinstance(draft, HiddenDecoder)
        return draft

    def check_rows(self) -> None:
        """What both caches and the rows that wait hold is what a fresh pass over the sequence gives."""
        target, draft = self._fresh
        context = self.session._context
        tokens, count = context.tokens, self.draft.reach
        assert count < max(1, len(tokens)), "a row is of the token after it"
        hidden = fed(target, tokens[: max(count, context.target.rows)])
        same(self.decoders[0], target, context.target.rows)
        rows = self.draft.rows
        np.testing.assert_allclose(self.draft._states(count - rows), hidden[rows:count], atol=1e-4)
        fed(draft, tokens[1 : rows + 1], hidden)
        same(self.decoders[1], draft, rows)

    def run(self, prompt: list[int], take: int | None = None, schedule: Any = None, **options: Any) -> tuple[int, ...]:
        """The tokens of a request, or of its first rounds; checks the rows after each."""
        asked: dict[str, Any] = {"stop_token_ids": (), "max_new_tokens": 12, **options}
        stream, found = self.session.stream(prompt, schedule=schedule, **asked), list[int]()
        for chunk in islice(stream, take):
            found += chunk.tokens
            self.check_rows()
        stream.close()
        self.check_rows()
        return tuple(found)


def fed(decoder: OrtDecoder, tokens: list[int], hidden: np.ndarray | None = None) -> np.ndarray:
    """The hidden states that a pass over `tokens` gives; of a draft, one that reads `hidden`."""
    found = [np.zeros((0, GIVEN), np.float32)]
    for place in range(0, len(tokens), CONTRACT.prompt_chunk):
        part = tokens[place : place + CONTRACT.prompt_chunk]
        if decoder.reader is not None and hidden is not None:
            decoder.reader.read(hidden[place : place + len(part)])
        decoder.feed(part, place)
        if decoder.taps is not None:
            found.append(decoder.taps().copy())
    return np.concatenate(found)


def same(ours: DeviceDecoder, theirs: OrtDecoder, count: int) -> None:
    """The first `count` cache rows."""
    for one, other in zip(ours.read_rows(count), theirs.read_rows(count), strict=True):
        np.testing.assert_allclose(one.view(np.float32), other, atol=1e-4)


KINDS = {
    "every id": (None, "onnx", "10.16.1"),
    "a cut vocabulary": (KEPT, "onnx", "10.16.1"),
    "before TensorRT 10.15": (KEPT, "rows", "10.3.0"),
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("bundle"), *request.param)


@pytest.mark.parametrize("k", [0, 1, 2, 4])
@pytest.mark.parametrize("options", RULES)
def test_rounds_give_the_hosts_tokens_and_the_rows_of_a_fresh_pass(made: Made, options: dict[str, Any], k: int) -> None:
    made.fresh()
    for length in (1, 2, 3, 16, 17, 18, 40):
        asked: dict[str, Any] = {"num_draft_tokens": k, "max_new_tokens": 14, "stop_token_ids": (), **options}
        found = made.run(TOKENS[:length], **asked)
        assert made.session.drafts.context.drafts_with == made.bundle.manifest.first_draft
        if length > 1 or not options:  # else the device's first round is a plain one, which draws less
            assert found == made.host.generate(TOKENS[:length], **asked).tokens


@pytest.mark.parametrize("whole", [True, False], ids=["whole rounds", "pass by pass"])
def test_the_same_tokens_are_drafted_and_accepted_as_on_the_host(made: Made, whole: bool) -> None:
    """Of what a round drafted, too, the rows are the same."""
    made.fresh()
    accepted, session = np.zeros(4, int), made.session if whole else made.pass_by_pass
    session.reset()  # the two share their caches
    head, host = made.bundle.manifest.first_draft, made.host.engine.draft
    assert host is not None
    assert isinstance(host.decoder, OrtDecoder)
    for options in RULES:
        for start in range(4):
            asked: dict[str, Any] = {"num_draft_tokens": 4, "max_new_tokens": 20, "stop_token_ids": (), **options}
            streams = (one.stream(TOKENS[start : start + 20], **asked) for one in (session, made.host))
            for ours, theirs in zip(*streams, strict=True):
                assert (ours.tokens, ours.draft_tokens) == (theirs.tokens, theirs.draft_tokens)
                rows = session._context.drafts[head].rows + max(0, len(ours.draft_tokens) - 1)
                same(made.decoders[1], host.decoder, rows)
            statistics = ours.statistics
            assert (statistics.device_seconds > 0) is whole
            assert (statistics.draft_seconds + statistics.target_seconds > 0) is not whole
            accepted += statistics.accepted_by_position
    session.reset()
    assert accepted[2] > 0, "passes of several true rows"


@pytest.mark.parametrize(("count", "position"), [(1, 0), (5, 20), (6, 20), (16, 16), (16, 40), (9, 55), (16, 48)])
@pytest.mark.parametrize("how", ["step", "feed"])
def test_hidden_states_of_any_number_of_tokens(made: Made, how: str, count: int, position: int) -> None:
    """A wide step is two passes; next to the capacity a prompt chunk is several narrow ones."""
    made.fresh()
    target, draft = made.decoders
    assert target.taps is not None
    assert draft.reader is not None
    ours, theirs = made._fresh
    hidden = fed(ours, TOKENS[: position + count])
    fed(theirs, TOKENS[1 : position + count], hidden)
    for decoder, shift in ((target, 0), (draft, 1)):
        for place in range(0, position, 4):
            draft.reader.read(hidden[place : place + 4])
            decoder.feed(TOKENS[shift + place : shift + min(place + 4, position)], place)
    getattr(target, how)(TOKENS[position : position + count], position)
    np.testing.assert_allclose(target.taps(), hidden[position:], atol=1e-4)
    if count > 1:
        draft.reader.read(hidden[position : position + count - 1])
        getattr(draft, how)(TOKENS[position + 1 : position + count], position)
        same(draft, theirs, position + count - 1)
    made.session._context.forget()


@pytest.mark.parametrize("rule", ["greedy", "block", "token"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_passes_of_a_round(made: Made, rule: str, k: int) -> None:
    """One launch: what fuses, k + 1 rows of the draft, one for each further token, and the target."""
    hidden = np.zeros((1, GIVEN), np.float32)
    made.rounds.run(TOKENS[:20], k, noise(k, rule), hidden)  # everything is bound
    del made.rounds._replay._graphs[rule, k, 32]
    made.fresh()
    made.rounds.run(TOKENS[:20], k, noise(k, rule), hidden)
    select, first = "select_best", f"hidden[1, {k + 1}, "
    target, draft = f"target-{made.engine.dialect}", f"draft-{made.engine.dialect}"
    expected = [f"draft-fuse-onnx {first}6]", f"{draft} tokens[1, {k + 1}] columns[32] {first}5]", select]
    for _ in range(1, k):
        expected += [f"{draft} tokens[1, 1] columns[64] hidden[1, 1, 5]", select]
    expected += [f"{target} tokens[1, {k + 1}] columns[32]", "accept_best" if rule == "greedy" else "accept_drawn"]
    assert executed(made.device.log) == expected
    for rows in range(1, k + 2):
        made.device.log.clear()
        made.rounds.run(TOKENS[:20], k, noise(k, rule), np.zeros((rows, GIVEN), np.float32))
        assert made.device.log == ["launch", "wait"]
    made.fresh()


def test_what_is_captured_at_load(made: Made) -> None:
    assert made.at_load.count("capture") == 3 * 5 * 2 + 2 * 3
    made.fresh()
    made.run(TOKENS[:20], max_new_tokens=30)
    assert "capture" not in made.device.log


def test_common_prefixes_shorter_and_longer_prompts(made: Made) -> None:
    """A common prefix of n tokens keeps n - 1 rows of the draft."""
    made.fresh()
    first = TOKENS[:24]
    answer = made.run(first)
    for shared in (0, 1, 7, 16, 22, 23, 24):
        other = [*first[:shared], *([(first[shared] + 1) % VOCAB] if shared < 24 else []), *TOKENS[50:56]]
        assert made.run(other) == made.host.generate(other, max_new_tokens=12, stop_token_ids=()).tokens
        made.run(first)
    assert made.run(first) == answer
    longer = [*first, *answer, 3, 4]
    made.session.generate(longer, max_new_tokens=1, stop_token_ids=())
    made.check_rows()
    assert made.run(first[:6]) == made.host.generate(first[:6], max_new_tokens=12, stop_token_ids=()).tokens


def test_requests_of_every_kind_one_after_the_other(made: Made) -> None:
    """Rounds of the host, of lookups and without a draft lie between those of the device; some end early."""
    made.fresh()
    rng = np.random.default_rng(3)
    head = made.bundle.manifest.first_draft
    kinds: list[dict[str, Any]] = [
        *RULES,
        {"drafter": "ngram"},
        {"drafter": f"ngram+{head}"},
        {"drafter": f"ngram+{head}", "temperature": 0.9},
        {"repetition_penalty": 1.3},
        {"speculate": False},
        {"speculate": False, "temperature": 1.0},
    ]
    drafted = 0
    for seed in range(45):
        kind = kinds[int(rng.integers(len(kinds)))]
        start, length = int(rng.integers(20)), int(rng.integers(2, 40))
        options = {"max_new_tokens": int(rng.integers(1, 14)), "stop_token_ids": (), "seed": seed, **kind}
        if "speculate" not in kind:
            options["num_draft_tokens"] = int(rng.integers(0, 5))
        prompt = TOKENS[start : start + length]
        found = made.run(prompt, take=int(rng.integers(1, 3)) if seed % 4 == 0 else None, **options)
        expected = made.host.generate(prompt, **options)
        assert found == expected.tokens[: len(found)]
        drafted += expected.statistics.drafted
    assert drafted > 100


def test_a_number_of_draft_tokens_that_falls_after_full_acceptance(made: Made) -> None:
    """More rows wait than the next round's first pass has: a pass of their own writes the first of them."""
    made.fresh()
    for numbers in ((4, 1, 3, 0, 4, 2), (0, 0, 0, 0, 1), (4, 0, 1), (1,)):
        for start in range(4):
            prompt = TOKENS[start : start + 21]
            found = made.run(prompt, schedule=Wants(*numbers), max_new_tokens=16, num_draft_tokens=4)
            expected = made.host.generate(prompt, max_new_tokens=16, speculate=False, stop_token_ids=())
            assert found == expected.tokens


def test_stop_tokens_in_the_middle_of_a_round(made: Made) -> None:
    made.fresh()
    prompt = TOKENS[:20]
    answer = made.host.generate(prompt, max_new_tokens=20, stop_token_ids=()).tokens
    for place in range(1, 12):
        stop = answer[place]
        found = made.run(prompt, stop_token_ids=(stop,), num_draft_tokens=4, max_new_tokens=20)
        assert found == answer[: answer.index(stop) + 1]


def test_up_to_the_capacity(made: Made) -> None:
    """Padding of the draft's first pass must not reach beyond it."""
    made.fresh()
    for length in range(44, 63):
        found = made.run(TOKENS[:length], max_new_tokens=64 - length)
        expected = made.host.generate(TOKENS[:length], max_new_tokens=64 - length, stop_token_ids=())
        assert found == expected.tokens


def test_where_hidden_states_are_missing_the_device_decodes_plainly(made: Made) -> None:
    made.fresh()
    stream = made.session.stream(TOKENS[:20], max_new_tokens=8, stop_token_ids=(), num_draft_tokens=2)
    next(stream)
    made.draft._count = 0
    chunks = list(stream)
    assert not any(chunk.draft_tokens for chunk in chunks)
    expected = made.host.generate(TOKENS[:20], max_new_tokens=8, stop_token_ids=()).tokens[
        -sum(len(c.tokens) for c in chunks) :
    ]
    assert tuple(token for chunk in chunks for token in chunk.tokens) == expected


@pytest.mark.parametrize("count", [None, 0, 4])
def test_a_round_that_is_given_other_rows_than_it_can_write(made: Made, count: int | None) -> None:
    hidden = None if count is None else np.zeros((count, GIVEN), np.float32)
    with refused(EngineError, "hidden states of", str(count or 0), "1 to 3"):
        made.rounds.run(TOKENS[:20], 2, None, hidden)
    if count:
        with refused(EngineError, "hidden states of", "3"):
            made.rounds.run(TOKENS[:3], 2, None, hidden[:3] if hidden is not None else None)


def test_padding_is_of_numbers_whatever_was_there(made: Made) -> None:
    """Rows that were not numbers lie where the padding of the next pass is read from."""
    made.fresh()
    nothing = np.full((5, GIVEN), np.nan, np.float32)
    result = made.rounds.run(TOKENS[:20], 4, None, nothing)
    assert np.isnan(result.confidence).all()
    made.session._context.forget()
    made.rounds.run(TOKENS[:20], 4, None, np.zeros((1, GIVEN), np.float32))
    draft = made.decoders[1]
    assert all(np.isfinite(part.view(np.float32)).all() for part in draft.read_rows(64))
    assert draft.reader is not None
    for hidden in (nothing, np.zeros((1, GIVEN), np.float32)):
        draft.reader.read(hidden)
        draft.feed(TOKENS[: len(hidden)], 0)
    assert all(np.isfinite(part.view(np.float32)).all() for part in draft.read_rows(16))
    made.session._context.forget()


def test_a_plan_of_what_fuses_that_is_missing(made: Made) -> None:
    from specexport.engines.tensorrt.engine import load_bundle
    from support.fake_engine import fake_library

    plans = tuple(plan for plan in made.bundle.manifest.plans if "fuse" not in plan.graph)
    bundle = replace(made.bundle, manifest=replace(made.bundle.manifest, plans=plans))
    device = FakeDevice()
    with refused(EngineError, "no plan of fuse", "specexport compile", code="not_built_for_engine"):
        load_bundle("tensorrt", bundle, fake_library(device, plans[0].version), device)
