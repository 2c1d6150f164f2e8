"""How byte-level BPE splits text before its merges, by the name that a GGUF file gives in `tokenizer.ggml.pre`.

The names and what they mean are llama.cpp's (src/llama-vocab.cpp), whose ids scripts/gguf_ids.py compares with. Each
pattern cuts every piece that the one before it left into its matches and what lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

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
