from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.errors import BundleError, ParameterError, PromptError, ToolsError
from specexport.runtime.load import load
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.doubles import BOS, CONTRACT, EOS, VOCAB, FakeDecoder, fake_session, greedy_tokens
from support.refusals import refused
from support.scripted import scripted_session
from support.tool_templates import CHATML
from tokenizers.processors import TemplateProcessing

MakeSession = Callable[..., Session]
PROMPT = "A prompt of 22 bytes.."


@pytest.fixture
def make_session(tmp_path: Path) -> MakeSession:
    def make(
        seed: int = 0,
        noise: float = 0.4,
        scale: float = 1.0,
        draft_vocab: int = VOCAB,
        target_vocab: int = VOCAB,
        **options: Any,
    ) -> Session:
        target = FakeDecoder(vocab_size=target_vocab, seed=seed)
        draft = FakeDecoder(vocab_size=draft_vocab, seed=seed, noise=noise, scale=scale)
        return fake_session(tmp_path, target, draft, **options)

    return make


def expected(session: Session, prompt: str | list[int], count: int) -> tuple[int, ...]:
    tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return greedy_tokens(session.engine.target, tokens, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 17, 40])
@pytest.mark.parametrize("seed", range(4))
def test_speculative_equals_plain_equals_the_target(make_session: MakeSession, length: int, seed: int) -> None:
    session = make_session(seed)
    prompt = np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()
    count = min(20, session.capacity - length)
    speculative = session.generate(prompt, max_new_tokens=count, speculate=True)
    session.reset()
    plain = session.generate(prompt, max_new_tokens=count, speculate=False)
    assert speculative.tokens == plain.tokens == expected(session, prompt, count)
    assert speculative.text == plain.text
    assert speculative.statistics.accepted > 0 or count < 20
    assert plain.statistics.drafted == 0


@pytest.mark.parametrize(("target_vocab", "draft_vocab"), [(VOCAB, VOCAB + 30), (VOCAB + 30, VOCAB)])
def test_vocabularies_padded_to_different_sizes(make_session: MakeSession, target_vocab: int, draft_vocab: int) -> None:
    for seed in range(6):
        session = make_session(seed, target_vocab=target_vocab, draft_vocab=draft_vocab)
        prompt = [target_vocab - 1, 5, target_vocab - 2]
        assert session.generate(prompt, max_new_tokens=30).tokens == expected(session, prompt, 30)
        session.reset()
        assert len(session.generate(prompt, max_new_tokens=30, temperature=5.0, seed=seed).tokens) == 30


def test_chunks_join_to_the_generation(make_session: MakeSession) -> None:
    session = make_session()
    whole = session.generate(PROMPT, max_new_tokens=17)
    session.reset()
    chunks = list(session.stream(PROMPT, max_new_tokens=17))
    assert tuple(token for chunk in chunks for token in chunk.tokens) == whole.tokens
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert all("".join(chunk.pieces) == chunk.text and len(chunk.pieces) == len(chunk.tokens) for chunk in chunks)
    assert all(chunk.accepted == len(chunk.tokens) - 1 for chunk in chunks[:-1])
    assert sum(chunk.accepted for chunk in chunks) == whole.statistics.accepted > 0
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len(chunks) == whole.statistics.rounds
    assert whole.statistics.emitted == 17
    assert whole.statistics.prompt_tokens == len(PROMPT)


def test_the_capacity_ends_with_length(make_session: MakeSession) -> None:
    session = make_session(noise=0.0)
    found = session.generate(PROMPT, max_new_tokens=10**9)
    assert found.finish_reason == "length"
    assert found.tokens == expected(session, PROMPT, CONTRACT.capacity - len(PROMPT))


def test_a_prompt_that_fills_the_capacity_is_refused(make_session: MakeSession) -> None:
    session = make_session()
    with refused(PromptError, field="prompt"):
        session.generate([1] * CONTRACT.capacity)
    longest = session.generate([1] * (CONTRACT.capacity - 1))
    assert longest.tokens == expected(session, [1] * (CONTRACT.capacity - 1), 1)
    assert longest.finish_reason == "length"


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_messages_that_fill_the_capacity_are_refused(kind: Any, tmp_path: Path) -> None:
    session = scripted_session(tmp_path, CHATML, "assistant\n")
    with refused(PromptError, session.capacity, field="messages"):
        session.encode(kind([{"role": "user", "content": "x" * session.capacity}]))


def test_prompts_and_tools_of_other_types_are_refused(make_session: MakeSession) -> None:
    session = make_session()
    with refused(PromptError, "item 1", "object", field="prompt"):
        session.generate([1, object()])
    for tool in ({"type": "function"}, {}, None):
        with refused(ToolsError, type(tool).__name__):
            session.encode([1], [tool])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wrong",
    [{"path": 5}, {"path": b"a"}, {"policy": "other.json"}, {"check_digests": "yes"}, {"chat_template": 5}],
    ids=str,
)
def test_what_no_bundle_can_be_loaded_by(wrong: dict[str, Any]) -> None:
    with refused(ParameterError, field=next(iter(wrong))):
        load(**{"path": "there.bundle"} | wrong)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("encode", {"tools": 5}),
        ("encode", {"variables": 5}),
        ("encode_prediction", {"prediction": 5}),
        ("prepare_grammar", {"grammar": "a*"}),
    ],
)
def test_other_types_are_refused(make_session: MakeSession, method: str, wrong: dict[str, Any]) -> None:
    with refused(ParameterError, field=next(iter(wrong))):
        getattr(make_session(), method)(**({"prompt": [1]} if method == "encode" else {}) | wrong)


@pytest.mark.parametrize("place", range(12))
def test_a_stop_token_within_a_round_cuts_it_and_the_next_request_is_right(
    make_session: MakeSession, place: int
) -> None:
    session = make_session(seed=2, noise=0.0)
    tokens = expected(session, PROMPT, 20)
    first = tokens.index(tokens[place])
    found = session.generate(PROMPT, stop_token_ids=[tokens[place]])
    assert found.tokens == tokens[: first + 1]
    assert found.finish_reason == "stop"
    assert found.statistics.emitted == first + 1
    # The conversation goes on behind the stop token with something else than what was cut off.
    longer = [*PROMPT.encode(), *found.tokens, 1, 2]
    assert session.generate(longer, max_new_tokens=8).tokens == expected(session, longer, 8)


def test_the_text_of_a_stop_token_is_left_out(make_session: MakeSession) -> None:
    session = make_session()
    tokens = expected(session, PROMPT, 20)
    ascii_place = next(i for i, token in enumerate(tokens) if 32 <= token < 127)
    found = session.generate(PROMPT, stop_token_ids=[tokens[ascii_place]])
    assert not found.text.endswith(chr(tokens[ascii_place]))


class Writes(FakeDecoder):
    """Continues every prompt with the bytes of `text`."""

    def __init__(self, text: str, prompt_length: int, **options: Any) -> None:
        super().__init__(**options)
        self.text, self.prompt_length = text.encode(), prompt_length

    def logits_after(self, context: Any) -> np.ndarray:
        place = len(context) - self.prompt_length
        token = self.text[place] if 0 <= place < len(self.text) else EOS
        return np.eye(VOCAB, dtype=np.float32)[token]


def test_a_cut_at_the_length_flushes_what_was_held_back(tmp_path: Path) -> None:
    session = fake_session(tmp_path, Writes("one ENDX", 1), Writes("one ENDX", 1))
    assert session.generate([BOS], max_new_tokens=6, stop="END").text == "one EN"


@pytest.mark.parametrize(
    "options", [{"speculate": False}, {"num_draft_tokens": 0}, {"speculate": False, "drafter": "ngram+model"}]
)
def test_plain_decoding_never_touches_the_draft(make_session: MakeSession, options: dict[str, Any]) -> None:
    session = make_session()
    found = session.generate(PROMPT, max_new_tokens=9, **options)
    assert found.tokens == expected(session, PROMPT, 9)
    assert found.statistics.drafted == 0
    assert session.engine.draft.decoder.steps == []  # type: ignore[union-attr]


def test_the_shared_prefix_is_reused(make_session: MakeSession) -> None:
    session = make_session()
    first = session.generate(PROMPT, max_new_tokens=6)
    assert first.statistics.reused_tokens == 0
    longer = [*PROMPT.encode(), *first.tokens, 7, 8, 9]
    session.engine.target.steps.clear()  # type: ignore[attr-defined]
    second = session.generate(longer, max_new_tokens=6)
    assert second.tokens == expected(session, longer, 6)
    assert second.statistics.reused_tokens == len(PROMPT) + 5  # the row of the last emitted token was never needed
    assert session.engine.target.steps[0] == (3, len(PROMPT) + 5)  # type: ignore[attr-defined]
    again = session.generate(PROMPT, max_new_tokens=6)
    assert again.tokens == first.tokens
    assert again.statistics.reused_tokens == len(PROMPT) - 1


def test_a_seed_repeats_a_sampled_request(make_session: MakeSession) -> None:
    session = make_session()

    def sample(seed: int | None, **options: Any) -> tuple[int, ...]:
        return session.generate(PROMPT, max_new_tokens=12, temperature=1.0, seed=seed, **options).tokens

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)
    assert sample(1, speculate=False) == sample(1, speculate=False)


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": -1},
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_k": 1.5},
        {"top_p": float("nan")},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"presence_penalty": -3},
        {"frequency_penalty": float("inf")},
        {"logit_bias": {0: 101.0}},
        {"logit_bias": {VOCAB: 1.0}},
        {"banned_tokens": [-1]},
        {"banned_tokens": range(VOCAB)},
        {"banned_tokens": range(VOCAB - 1), "min_new_tokens": 1, "stop_token_ids": VOCAB - 1},
        {"min_new_tokens": -1},
        {"verification": "none"},
        {"drafter": "oracle"},
        {"seed": -(2**63) - 1},
        {"num_draft_tokens": 5},
        {"num_draft_tokens": -1},
        {"stop": ""},
    ],
)
def test_absurd_options_are_refused_at_the_call(make_session: MakeSession, options: dict[str, Any]) -> None:
    session = make_session()
    with refused(ParameterError, field=next(iter(options))):
        session.stream(PROMPT, **options)
    assert session.generate(PROMPT, max_new_tokens=5).tokens == expected(session, PROMPT, 5)


@pytest.mark.parametrize("kind", [iter, tuple, np.array, lambda ids: list(np.array(ids, np.int32))])
def test_ids_may_be_of_any_iterable_and_numpys(make_session: MakeSession, kind: Callable[[list[int]], Any]) -> None:
    session, ids = make_session(), [1, 2, 3]
    assert session.generate(kind(ids), max_new_tokens=5).tokens == expected(session, ids, 5)
    found = session.encode(kind(ids))
    assert (found, set(map(type, found))) == (ids, {int})


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        [],
        [0, VOCAB],
        [-1],
        "a lone \ud800 surrogate",
        [{"role": "user", "content": "x"}, 5],
        [{"content": "x"}],
    ],
)
def test_absurd_prompts_are_refused_at_the_call(make_session: MakeSession, prompt: Any) -> None:
    with refused(PromptError, field=("messages", "prompt")):
        make_session(chat_template="{{ messages[0].content }}").stream(prompt)


def test_chat_messages(make_session: MakeSession) -> None:
    session = make_session(chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [{"role": "system", "content": "A pro"}, {"role": "user", "content": "mpt"}]
    # A template writes its own special tokens, so the tokenizer must not add them once more.
    session.tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", BOS)])
    assert session.encode("A prompt") == [BOS, *b"A prompt"]
    assert session.encode(messages) == [BOS, *b"A prompt"]


CHAT = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def test_a_special_token_in_chat_is_text_and_in_a_text_prompt_a_token(make_session: MakeSession) -> None:
    session = make_session(chat_template=CHAT)
    spelled = [{"role": "user", "content": "<eos>"}]
    assert session.encode(spelled) == [BOS, *b"[user]<eos>"]
    assert session.encode("[user]<eos>") == [*b"[user]", EOS]


def test_every_parameter_stands_in_the_signature() -> None:
    for method in (Session.stream, Session.generate):
        signature = inspect.signature(method)
        assert list(signature.parameters)[:4] == ["self", "prompt", "params", "schedule"]
        assert list(signature.parameters)[4:] == [field.name for field in fields(SamplingParameters)]
        assert all(one.kind is one.KEYWORD_ONLY for one in list(signature.parameters.values())[4:])


def test_the_time_to_the_first_token_begins_at_the_call(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own time between the call and the iteration is left out, tokenizing is not."""
    clock = [0.0]

    def encode(prompt: Any) -> list[int]:
        clock[0] += 5.0
        return [1, 2, 3]

    session = make_session()
    monkeypatch.setattr(session, "encode", encode)
    for module in ("session", "loop.chunks", "loop.speculate"):
        monkeypatch.setattr(f"specexport.runtime.{module}.perf_counter", lambda: clock[0])
    stream = session.stream("text", max_new_tokens=2, speculate=False)
    clock[0] += 100.0
    statistics = next(stream).statistics
    clock[0] += 100.0
    next(stream)
    assert (statistics.setup_seconds, statistics.first_token_seconds, statistics.total_seconds) == (5.0, 5.0, 5.0)
    assert statistics.decode_seconds == 0.0


def test_messages_without_a_template(make_session: MakeSession) -> None:
    with refused(BundleError, "instead"):
        make_session().stream([{"role": "user", "content": "x"}])


def test_a_broken_tokenizer_is_named(make_session: MakeSession) -> None:
    session = make_session()
    path = session.bundle.path(session.bundle.manifest.text.tokenizer)
    path.write_text("{}")
    with refused(BundleError, "Model"):
        Session(session.bundle, session.engine)
