"""Test doubles: a decoder whose logits betray every wrong cache row, and a session around two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from specexport.bundle import (
    SCHEMA_VERSION,
    Bundle,
    CacheLayer,
    Contract,
    DraftSpec,
    Manifest,
    ModelSpec,
    Proof,
    TextSpec,
    list_files,
)
from specexport.engines.base import Engine, Logits, OpenedDraft, SavedStates
from specexport.engines.open_rows import OpenRows
from specexport.runtime.session import Session
from specexport.runtime.state.context import Context
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from support.rolls_back import RollsBack

CONTRACT = Contract(capacity=48, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
BYTES = 256  # token id = byte; special tokens follow
BOS, EOS = BYTES, BYTES + 1
VOCAB = BYTES + 2


class FeedsByStep(RollsBack):
    """`Decoder.feed` for doubles whose steps cost nothing, and caches that nobody copies."""

    def feed(self, tokens: Sequence[int], position: int) -> None:
        self.step(tokens, position)  # type: ignore[attr-defined]

    def read_rows(self, end: int) -> list[np.ndarray]:
        raise AssertionError("this double's rows are not copied")

    def write_rows(self, saved: Sequence[np.ndarray], start: int, end: int) -> None:
        raise AssertionError("this double's rows are not copied")


class FakeDecoder(FeedsByStep):
    """A decoder whose row r gives logits drawn from a hash of the cache rows 0..r, read back from the cache.

    `noise` mixes in a second table, so that a draft agrees with a target of the same seed now and then; `scale` -1
    makes one that is always wrong.
    """

    def __init__(
        self,
        contract: Contract = CONTRACT,
        vocab_size: int = VOCAB,
        seed: int = 0,
        noise: float = 0.0,
        scale: float = 1.0,
    ):
        self.contract, self.vocab_size = contract, vocab_size
        self.seed, self.noise, self.scale = seed, noise, scale
        self.rows = np.full(contract.capacity, -1.0)
        self.steps: list[tuple[int, int]] = []  # (tokens, position) of every step
        self._buffer = np.zeros((contract.widest_step, vocab_size), np.float32)
        self._known: dict[bytes, Logits] = {}

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        end = position + len(tokens)
        assert len(tokens) > 0
        assert position >= 0
        assert end <= self.contract.capacity
        assert all(0 <= token < self.vocab_size for token in tokens)
        self.steps.append((len(tokens), position))
        self.write(tokens, position)
        rows = len(tokens) if len(tokens) <= self.contract.widest_step else 1
        self._buffer[:] = np.nan  # the contract: any step may overwrite the buffer of another
        for index, row in enumerate(range(end - rows, end)):
            self._buffer[index] = self.logits_after(self.seen(row))
        return self._buffer[:rows]

    def write(self, tokens: Sequence[int], position: int) -> None:
        self.rows[position : position + len(tokens)] = tokens

    def seen(self, row: int) -> np.ndarray:
        return self.rows[: row + 1]

    def overwrite_rows(self, start: int, value: float) -> None:
        self.rows[start:] = -1.0 - abs(value)

    def read_rows(self, end: int) -> list[np.ndarray]:
        return [self.rows[None, :end, None].copy()]

    def write_rows(self, saved: Sequence[np.ndarray], start: int, end: int) -> None:
        self.rows[start:end] = saved[0][0, start:end, 0]

    def logits_after(self, context: Sequence[float] | np.ndarray) -> Logits:
        """The logits that follow `context`, `[vocab]`: a function of the tokens alone."""
        key = np.asarray(context, np.float64).tobytes()
        if key not in self._known:
            logits = self.scale * (self._table(key, b"base") + self.noise * self._table(key, b"noise"))
            self._known[key] = logits.astype(np.float32)
        return self._known[key]

    def _table(self, key: bytes, name: bytes) -> np.ndarray:
        digest = blake2b(key, key=self.seed.to_bytes(8, "little") + name, digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "little")).normal(size=self.vocab_size)


class FakeTreeDecoder(FakeDecoder):
    """A `FakeDecoder` whose steps may be trees: each row sees its own path, wherever in the cache that lies."""

    def __init__(self, contract: Contract, vocab_size: int = VOCAB, seed: int = 0):
        super().__init__(contract, vocab_size, seed)
        self.trees: list[list[int]] = []  # parents of every tree

    def step_tree(self, tokens: Sequence[int], parents: Sequence[int], position: int) -> Logits:
        chain = len(tokens) - len(parents)
        assert 0 < chain <= len(tokens) <= self.contract.widest_step
        assert position + len(tokens) <= self.contract.capacity
        self.trees.append(list(parents))
        self.write(tokens, position)
        paths = [list(range(row + 1)) for row in range(chain)]
        for row, parent in enumerate(parents, start=chain):
            assert parent < row
            paths.append([*paths[parent], row])
        self._buffer[:] = np.nan
        for row, path in enumerate(paths):
            self._buffer[row] = self.logits_after([*self.rows[:position], *(self.rows[position + i] for i in path)])
        return self._buffer[: len(tokens)]


class StatefulDecoder(FakeDecoder):
    """A `FakeDecoder` that also keeps a state, committed late: what it has taken in must be what its rows hold."""

    has_states = True

    def __init__(self, seed: int = 0, noise: float = 0.0, keeps: bool = False):
        super().__init__(seed=seed, noise=noise)
        self.open_rows = OpenRows(self.contract.widest_step, keeps)
        self.certain: list[float] = []
        self.open: list[float] = []
        self.prompt = False

    @property
    def taken(self) -> list[float]:
        return self.certain + self.open

    def resumable(self, rows: int) -> int:
        return self.open_rows.resumable(rows)

    def feed(self, tokens: Sequence[int], position: int) -> None:
        self.prompt = True
        try:
            self.step(tokens, position)
        finally:
            self.prompt = False

    def write(self, tokens: Sequence[int], position: int) -> None:
        super().write(tokens, position)
        if not position:
            self.certain, self.open = [], []
        pending, certain = self.open_rows.begin(position, len(tokens), self.prompt)
        joined = [*self.open[:pending], *tokens]
        self.certain, self.open = self.certain + joined[:certain], joined[certain:]
        self.open_rows.finish(len(self.certain), len(self.taken))

    def seen(self, row: int) -> np.ndarray:
        rows, taken = super().seen(row), np.asarray(self.taken[: row + 1])
        assert len(rows) == len(taken)
        return np.where(rows == taken, rows, -7.0)

    def overwrite_rows(self, start: int, value: float) -> None:
        super().overwrite_rows(start, value)
        self.certain, self.open = [], []
        self.open_rows.forget()

    def read_recurrent_states(self, end: int) -> SavedStates:
        return SavedStates(self.open_rows.start, end, [np.asarray(self.certain), np.asarray(self.open)])

    def write_recurrent_states(self, saved: SavedStates) -> None:
        self.certain, self.open = (part.tolist() for part in saved.arrays)
        self.open_rows.finish(saved.start, saved.end)


def greedy_tokens(decoder: FakeDecoder, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What plain greedy decoding must give, without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(decoder.logits_after(tokens).argmax()))
    return tuple(tokens[len(prompt) :])


def check_invariant(context: Context) -> None:
    """What a context over fake decoders must keep between rounds: every row that counts is the row of its token."""
    for cached in context.every_decoder:
        assert cached.rows < max(1, len(context.tokens))
        assert cached.decoder.rows[: cached.rows].tolist() == context.tokens[: cached.rows]  # type: ignore[attr-defined]
        if isinstance(cached.decoder, StatefulDecoder):
            assert cached.decoder.taken[: cached.rows] == context.tokens[: cached.rows]
            assert cached.decoder.resumable(cached.rows) == cached.rows


def byte_tokenizer() -> Tokenizer:
    """One token a byte, with the byte as its id: characters beyond ASCII take several tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable} | {
        chr(BYTES + place): byte for place, byte in enumerate(others)
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    return tokenizer


def write_bundle(
    root: Path,
    contract: Contract = CONTRACT,
    vocab_size: int = VOCAB,
    draft_vocab_size: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
    chat_template: str | None = None,
    has_draft: bool = True,
) -> Bundle:
    """A bundle's files without its manifest; graphs and weights are a few bytes that nothing can run."""
    roles = ("target", "draft") if has_draft else ("target",)
    for folder in ("graphs", "reference", "tokenizer"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(root / "tokenizer/tokenizer.json"))
    if chat_template is not None:
        (root / "tokenizer/chat_template.jinja").write_text(chat_template, encoding="utf-8")
    for role in roles:
        for name in (f"graphs/{role}.ort.onnx", f"graphs/{role}.weights", f"reference/{role}.npz"):
            (root / name).write_bytes(name.encode())

    def model(role: str, size: int) -> ModelSpec:
        return ModelSpec(
            source=f"org/{role}",
            architecture="FakeForCausalLM",
            checkpoint_sha256="0" * 64,
            num_parameters=1000,
            vocab_size=size,
            layers=(CacheLayer(2, 4), CacheLayer(2, 4)),
            graphs={"ort": f"graphs/{role}.ort.onnx"},
            weights=f"graphs/{role}.weights",
            format="float",
            notes=(),
            fidelity=None,
            reference=f"reference/{role}.npz",
            proofs=(Proof("onnxruntime", "ort", role, 10, 30, 1e-5, 1e-3),),
        )

    text = TextSpec(
        tokenizer="tokenizer/tokenizer.json",
        chat_template=None if chat_template is None else "tokenizer/chat_template.jinja",
        special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"},
        stop_token_ids=stop_token_ids,
    )
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        created="2026-01-01T00:00:00+00:00",
        command="specexport build",
        packages={"numpy": "2.0"},
        contract=contract,
        target=model("target", vocab_size),
        drafts=(DraftSpec("draft", model("draft", draft_vocab_size or vocab_size)),) if has_draft else (),
        text=text,
        engines=("onnxruntime",),
        plans=(),
        files=list_files(root),
    )
    return Bundle(root, manifest)


def with_models(manifest: Manifest, models: Mapping[str, ModelSpec]) -> Manifest:
    """With other models as its target and its draft, by role; reference and proofs stay."""
    made = {"target": manifest.target, **{draft.name: draft.model for draft in manifest.drafts}}
    for role, model in models.items():
        made[role] = replace(model, reference=made[role].reference, proofs=made[role].proofs)
    drafts = tuple(replace(draft, model=made[draft.name]) for draft in manifest.drafts)
    return replace(manifest, target=made["target"], drafts=drafts)


def proofs_of(manifest: Manifest) -> list[Proof]:
    return [proof for model in manifest.models.values() for proof in model.proofs]


def fake_session(
    root: Path,
    target: FakeDecoder,
    draft: FakeDecoder | None,
    stop_token_ids: tuple[int, ...] = (),
    chat_template: str | None = None,
    prompt_cache_bytes: int = 0,
) -> Session:
    """A real session over two fake decoders, or over a target alone."""
    draft_size = draft.vocab_size if draft else None
    bundle = write_bundle(
        root, target.contract, target.vocab_size, draft_size, stop_token_ids, chat_template, draft is not None
    )
    return Session(
        bundle, Engine("fake", "ort", target, draft and OpenedDraft(draft)), prompt_cache_bytes=prompt_cache_bytes
    )
