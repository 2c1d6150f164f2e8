from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from specexport.bundle import SharedVocabulary
from specexport.engines.base import Logits
from specexport.engines.shared_vocabulary import load_maps
from specexport.errors import BundleError
from specexport.runtime.drafting.translate import NarrowDecoder, TranslatedDecoder
from support.doubles import FakeDecoder, FeedsByStep
from support.refusals import refused

TO_DRAFT = np.array([2, 0, 1, 1, 0], np.int64)  # the target has 5 tokens, the draft 3
SHARED = np.array([[0, 1, 3], [2, 0, 1]], np.int64)


class Told(FeedsByStep):
    """A decoder that gives the logits it is told to, and remembers what it was fed."""

    vocab_size = 3

    def __init__(self, *logits: Sequence[Sequence[float]]) -> None:
        self.fed: list[tuple[list[int], int]] = []
        self.overwritten: list[tuple[int, float]] = []
        self._logits = [np.array(rows, np.float32) for rows in logits]

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        self.fed.append((list(tokens), position))
        return self._logits[len(self.fed) - 1]

    def overwrite_rows(self, start: int, value: float) -> None:
        self.overwritten.append((start, value))


def test_context_tokens_are_read_by_the_map_and_only_shared_tokens_have_logits() -> None:
    draft = Told([[0.5, -1.5, 2.5]])
    translated = TranslatedDecoder(draft, TO_DRAFT, SHARED)
    logits = translated.step([0, 2, 3, 4], 7)
    assert draft.fed == [([2, 1, 1, 0], 7)]
    assert logits.tolist() == [[2.5, 0.5, -np.inf, -1.5, -np.inf]]
    assert (translated.vocab_size, logits.dtype) == (5, np.float32)


def test_a_cut_vocabulary_has_its_logits_in_every_row() -> None:
    draft = Told([[0.5, -1.5, 2.5], [3.5, 4.5, 5.5]], [[6.5, 7.5, 8.5]])
    translated = TranslatedDecoder(draft, np.arange(5), np.array([[1, 2, 4], [0, 1, 2]]))
    none = -np.inf
    assert translated.step([0, 4], 0).tolist() == [[none, 0.5, -1.5, none, 2.5], [none, 3.5, 4.5, none, 5.5]]
    assert translated.step([3], 2).tolist() == [[none, 6.5, 7.5, none, 8.5]]


def test_the_cache_below_is_the_drafts_own() -> None:
    draft = Told()
    TranslatedDecoder(draft, TO_DRAFT, SHARED).overwrite_rows(3, 1e4)
    assert draft.overwritten == [(3, 1e4)]
    fake = FakeDecoder()
    fake.write([4, 5, 6], 0)
    for wrapped in (TranslatedDecoder(fake, TO_DRAFT, SHARED), NarrowDecoder(fake)):
        saved = wrapped.read_rows(3)
        fake.overwrite_rows(0, 0.0)
        wrapped.write_rows(saved, 1, 3)
        assert fake.rows[:3].tolist() == [-1.0, 5.0, 6.0]
        fake.write([4, 5, 6], 0)


def test_a_permuted_decoder_translated_back_is_the_decoder() -> None:
    plain, draft = FakeDecoder(), FakeDecoder()
    size = plain.vocab_size
    order = np.random.default_rng(0).permutation(size)  # target id -> draft id
    draft.logits_after = lambda context: plain.logits_after(np.argsort(order)[np.asarray(context, np.int64)])[
        np.argsort(order)
    ]
    translated = TranslatedDecoder(draft, order, np.stack([np.arange(size), order]))
    tokens = [5, 6, 7, 8, 9]
    assert np.array_equal(translated.step(tokens, 0), plain.step(tokens, 0))
    assert np.array_equal(translated.step([3], 5), plain.step([3], 5))


VOCABULARY = SharedVocabulary("maps.npz", shared_tokens=3, target_tokens=5, draft_tokens=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "maps.npz"
    np.savez(path, to_draft=TO_DRAFT, shared=SHARED)
    return path


def with_id(array: np.ndarray, place: tuple[int, ...], token: int) -> np.ndarray:
    changed = array.copy()
    changed[place] = token
    return changed


@pytest.mark.parametrize(
    ("to_draft", "shared"),
    [
        (TO_DRAFT[:4], SHARED),
        (TO_DRAFT[:, None], SHARED),
        (TO_DRAFT, SHARED[:, :2]),
        (TO_DRAFT, SHARED.T),
        (TO_DRAFT.astype(np.int32), SHARED),
        (TO_DRAFT, SHARED.astype(np.float64)),
        (with_id(TO_DRAFT, (1,), 3), SHARED),
        (with_id(TO_DRAFT, (1,), -1), SHARED),
        (TO_DRAFT, with_id(SHARED, (0, 2), 5)),
        (TO_DRAFT, with_id(SHARED, (1, 2), 3)),
        (TO_DRAFT, with_id(SHARED, (0, 0), -1)),
    ],
)
def test_maps_that_do_not_fit_are_refused(to_draft: np.ndarray, shared: np.ndarray, path: Path) -> None:
    np.savez(path, to_draft=to_draft, shared=shared)
    with refused(BundleError):
        load_maps(path, VOCABULARY, 5, 3)


def objects(path: Path) -> None:
    np.savez(path, allow_pickle=True, to_draft=np.array([object()] * 5), shared=SHARED)


def single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, TO_DRAFT)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("to_draft"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "flipped": lambda path: path.write_bytes(path.read_bytes().replace(TO_DRAFT.tobytes(), TO_DRAFT[::-1].tobytes())),
    "no such array": lambda path: np.savez(path, to_draft=TO_DRAFT),
    "objects": objects,
    "a single array": single_array,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_holds_no_maps_is_refused(damage: str, path: Path) -> None:
    DAMAGES[damage](path)
    with pytest.raises(BundleError, match=r"maps\.npz .*build the bundle again") as caught:  # numpy's words between
        load_maps(path, VOCABULARY, 5, 3)
    assert "\n" not in str(caught.value)


def test_a_narrow_draft_reads_id_0_for_what_it_lacks() -> None:
    draft = Told([[1, 2, 3]])
    narrow = NarrowDecoder(draft)
    assert narrow.step([1, 3, 2, 9], 4).tolist() == [[1, 2, 3]]
    assert draft.fed == [([1, 0, 2, 0], 4)]
    assert narrow.vocab_size == 3
