"""The tokenizer that a GGUF file's header describes, which gives the ids that llama.cpp gives.

How byte-level BPE splits text before its merges, by the name that a GGUF file gives in `tokenizer.ggml.pre`.

The names and what they mean are llama.cpp's (src/llama-vocab.cpp), whose ids scripts/gguf_ids.py compares with. Each
pattern cuts every piece that the one before it left into its matches and what lies between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from ...errors import CheckpointError, UnsupportedModelError
from .source import INSTEAD

_CONTRACTED = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_POWERS = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s"
_MARKS, _MARKS_OR_SLASH = (rf" ?[^\s\p{{L}}\p{{N}}]+[{end}]*" for end in (r"\r\n", r"\r\n/"))
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# llama.cpp knows no case beyond ASCII: any other letter is of both.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_ASCII_MARK = r"""[!-/:-@\[-`{-~]"""
_HAN = (
    r"\u4e00-\u9fff\u3400-\u4dbf\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}"
    r"\x{2ceb0}-\x{2ebef}\uf900-\ufaff\x{2f800}-\x{2fa1f}"
)
_NOT_HAN = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTED})?"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DIGIT, _THREE = r"\p{N}", r"\p{N}{1,3}"


def _gpt4(numbers: str, *, contracted: str = _CONTRACTED + "|", word: str = _WORD, marks: str = _MARKS) -> str:
    """The pattern of cl100k, and its descendants."""
    return f"{contracted}{word}|{numbers}|{marks}|{_SPACES}"


def _gpt4o(numbers: str, suffix: str) -> str:
    """The pattern of o200k: words begin where lower case ends."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{suffix}|{first}{_UPPER}+{_LOWER}*{suffix}"
    return f"{words}|{numbers}|{_MARKS_OR_SLASH}|{_SPACES}"


def _marked_words(after_marks: str, spaces: str = _SPACES) -> str:
    """The pattern of DeepSeek-V3."""
    words = rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return rf"{words}| ?[\p{{P}}\p{{S}}]+{after_marks}|{spaces}"


_PHRASE = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_LLAMA3, _QWEN2 = _gpt4(_THREE), _gpt4(_DIGIT)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK = r"[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&\S]+"
_HAN_AND_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# Cased letters as of Unicode 10, without mathematical ones.
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2d\ua790-\ua7ff\uab30-\uab68"
    r"\x{10570}-\x{105bf}\x{10d50}-\x{10d8f}\x{16e40}-\x{16eff}\x{1d400}-\x{1dfff}]]"
)


@dataclass(frozen=True)
class Split:
    """patterns: regular expressions, one after another. whole_words: a piece that is a token is not merged from parts.
    add_bos: texts begin with the BOS token, where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    @property
    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        pieces = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_FAMILIES = {
    Split((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
    Split((_GPT2,)): "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling",
    Split((_DIGIT, _GPT2)): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    Split((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    Split((_LLAMA3,), True, True): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    Split((_LLAMA3,), True): "glm4 glm5",
    Split((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    Split((_QWEN2,)): (
        "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2 bailingmoe bailingmoe2 llada-moe"
    ),
    Split((_gpt4(_DIGIT, word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", marks=_MARKS.replace(r"\s", r"\s\p{M}")),)): "qwen35",
    Split((_gpt4(_DIGIT, contracted=""),)): "ufakzeka",
    Split((r"[^\n]+|\n+", _QWEN2)): "laguna",
    Split((_THREE, _gpt4(r"\p{N}+")), True): "minicpm5",
    Split((_gpt4(_DIGIT, marks=r" ?[^\s\p{L}\p{N}\r\n]+"),)): "seed-coder",
    Split((_gpt4(_DIGIT, word=_PHRASE, marks=r" ?[^\s\p{L}\p{N}]+[\r\n/]?"),)): "exaone-moe",
    Split((_LLAMA3.replace(r"\s+(?!\S)|\s+", _POWERS),)): "jais-2",
    Split((_gpt4o(_DIGIT, ""),), True, True): "tekken",
    Split((_gpt4o(_THREE, f"(?:{_CONTRACTED})?"),)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Split((_THREE, _HAN_AND_KANA, _marked_words(r"[\r\n]*"))): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    Split((_THREE, _HAN_AND_KANA, _marked_words("", r"[\r\n]|\s+(?!\S)|\s+"), _DIGIT)): "spark2_5",
    Split(
        (
            r"[\r\n]",
            rf"\s?{_CASED}+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
            r"\s+\z",
            _CJK,
            r"\p{N}+",
        )
    ): "deepseek-llm",
    Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)): "deepseek-coder",
    Split((_BLOOM,)): "bloom gpt3-finnish poro-chat",
    Split((_BLOOM, _DIGIT)): "viking",
    Split((rf"[{_HAN}]+|" + _gpt4(_THREE, contracted="", word=_NOT_HAN),)): "kimi-k2",
}
SPLITS = {name: split for split, names in _FAMILIES.items() for name in names.split()}


BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
SUPPORTED_TOKENIZERS = (BYTE_LEVEL, SENTENCEPIECE)  # the values of tokenizer.ggml.model that are read here
# Types of tokens, as GGUF numbers them.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # where the file says nothing
TEMPLATE, SPACE = "tokenizer.chat_template", "\N{LOWER ONE EIGHTH BLOCK}"


def read_tokenizer(source: str, values: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """values: the header's, of a `tokenizer.ggml.model` in `SUPPORTED_TOKENIZERS`.

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


def _byte_level(source: str, values: Mapping[str, Any], vocabulary: dict[str, int]) -> tuple[Tokenizer, bool]:
    name = str(values.get("tokenizer.ggml.pre") or "default")  # as llama.cpp has it where the file does not say
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
    # At the start of a text and after each special token.
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
    special: dict[str, str | None] = {}
    default = SENTENCEPIECE_IDS if values["tokenizer.ggml.model"] == SENTENCEPIECE else {}
    for role, name in ROLES.items():
        key = f"tokenizer.ggml.{name}_token_id"
        number = values.get(key, default.get(name))
        if number is not None and not 0 <= number < len(tokens):
            raise CheckpointError(
                f"{source} says {key} = {number} and has {len(tokens)} tokens; download the file again, or {INSTEAD}",
                key,
            )
        special[role] = None if number is None else tokens[number]
    return special


def _added(values: Mapping[str, Any], tokens: list[str]) -> list[AddedToken]:
    """The tokens that stay whole in a text, before it is split."""
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
