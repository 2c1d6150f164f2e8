"""The tokenizer that a GGUF file's header describes, which gives the ids that llama.cpp gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from ...errors import CheckpointError, UnsupportedModelError
from .gguf_splits import SPLITS
from .source import INSTEAD

BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
OWN = (BYTE_LEVEL, SENTENCEPIECE)  # the values of tokenizer.ggml.model that are read here
# Types of tokens, as GGUF numbers them.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # where the file says nothing
TEMPLATE, SPACE = "tokenizer.chat_template", "\N{LOWER ONE EIGHTH BLOCK}"


def read_tokenizer(source: str, values: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """values: the header's, of a `tokenizer.ggml.model` in `OWN`.

    Raises `CheckpointError` for a damaged tokenizer, `UnsupportedModelError` for a `tokenizer.ggml.pre` not known.
    """
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(values["tokenizer.ggml.tokens"])]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise CheckpointError(f"{source} has the token {twice!r} twice; download the file again, or {INSTEAD}")
    special = _special(source, values, tokens)
    if values["tokenizer.ggml.model"] == BYTE_LEVEL:
        tokenizer, add_bos = _byte_level(source, values, vocabulary)
    else:
        tokenizer, add_bos = _sentencepiece(values, vocabulary, special["unk_token"]), True
    for token in _added(values, tokens):
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    add = {"bos": values.get("tokenizer.ggml.add_bos_token", add_bos)}
    add["eos"] = values.get("tokenizer.ggml.add_eos_token", False)
    for end, wanted in add.items():
        if wanted and special[f"{end}_token"] is None:
            raise CheckpointError(
                f"{source} adds a token to each text (tokenizer.ggml.add_{end}_token) and does not say which; expected "
                f"tokenizer.ggml.{end}_token_id: {INSTEAD}"
            )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        add_bos_token=bool(add["bos"]),
        add_eos_token=bool(add["eos"]),
        chat_template=_templates(values),
        clean_up_tokenization_spaces=False,
        **special,
    )


def split_name(values: Mapping[str, Any]) -> str:
    """How text is split: llama.cpp goes by `default` where the file does not say."""
    return str(values.get("tokenizer.ggml.pre") or "default")


def _byte_level(source: str, values: Mapping[str, Any], vocabulary: dict[str, int]) -> tuple[Tokenizer, bool]:
    name = split_name(values)
    if name not in SPLITS:
        raise UnsupportedModelError(
            f"{source} splits text as {name} (tokenizer.ggml.pre), which is not known; known are "
            f"{', '.join(sorted(SPLITS))}: {INSTEAD}",
            "tokenizer.ggml.pre",
        )
    split = SPLITS[name]
    tokenizer = Tokenizer(models.BPE(vocabulary, _merges(values), ignore_merges=split.whole_words))
    tokenizer.pre_tokenizer = split.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, split.add_bos


def _sentencepiece(values: Mapping[str, Any], vocabulary: dict[str, int], unknown: str | None) -> Tokenizer:
    """BPE over characters, and bytes for those without a token. Scores say which pair is merged first."""
    merges = _merges(values)
    if scores := values.get("tokenizer.ggml.scores"):
        merges = generate_merges(vocabulary, dict(zip(vocabulary, scores, strict=False)))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(values.get("tokenizer.ggml.add_space_prefix", True))
    # At the start of a text and behind each special token.
    before = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer


def _merges(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for merge in values.get("tokenizer.ggml.merges", ()):
        place = merge.find(" ", 1)
        pairs.append((merge[:place], merge[place + 1 :]))
    return pairs


def _special(source: str, values: Mapping[str, Any], tokens: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    default = SENTENCEPIECE_IDS if values["tokenizer.ggml.model"] == SENTENCEPIECE else {}
    for role, name in ROLES.items():
        key = f"tokenizer.ggml.{name}_token_id"
        number = values.get(key, default.get(name))
        if number is not None and not 0 <= number < len(tokens):
            raise CheckpointError(
                f"{source} says {key} = {number} and has {len(tokens)} tokens; download the file again, or {INSTEAD}",
                key,
            )
        found[role] = None if number is None else tokens[number]
    return found


def _added(values: Mapping[str, Any], tokens: list[str]) -> list[AddedToken]:
    """The tokens that are found whole in a text, before it is split."""
    types = values.get("tokenizer.ggml.token_type", ())
    # The header has no place for it; llama.cpp goes by the model's name too.
    strips = any(name in str(values.get("general.name", "")).lower() for name in ("phi-3", "phi3"))
    added = []
    for token, kind in zip(tokens, types, strict=False):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) or (strips and token == "</s>"):
            rstrip = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
            added.append(AddedToken(token, normalized=False, special=kind != USER_DEFINED, rstrip=rstrip))
    return added


def _templates(values: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template, or several by name, as transformers keeps them."""
    named = {key.removeprefix(f"{TEMPLATE}."): text for key, text in values.items() if key.startswith(f"{TEMPLATE}.")}
    default: str | None = values.get(TEMPLATE)
    if not named:
        return default
    return named if default is None else {"default": default, **named}
