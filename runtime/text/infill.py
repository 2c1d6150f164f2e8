"""Prompts for the text between two others, by the tokens that a tokenizer has for that ("fill in the middle")."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

# Before the first text, before the second one, and at the end, where the model writes what is between them.
MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001  # DeepSeek-Coder
)
# What ends the middle, beside the marks and a model's own stop tokens.
ENDS = ("▁<EOT>", "<|fim_pad|>", "<fim_pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|endoftext|>")
ANYTHING = "\n"


@dataclass(frozen=True)
class Infill:
    """marks: ids of a row of `MARKS`. stops: ids that end the middle."""

    tokenizer: Tokenizer
    marks: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Infill | None:
        """None for a tokenizer without such tokens."""
        for names in MARKS:
            marks = tuple(number for name in names if (number := tokenizer.token_to_id(name)) is not None)
            if len(marks) == len(names):
                ends = (tokenizer.token_to_id(name) for name in ENDS)
                return cls(tokenizer, marks, (*marks, *(number for number in ends if number is not None)))
        return None

    def encode(self, before: str, after: str) -> list[int]:
        """Token ids of the prompt. Special tokens that the texts spell become tokens, as in other texts."""
        first, second, middle = self.marks
        start = self.tokenizer.encode("").ids  # such as <s>
        return [*start, first, *self._tokens(before), second, *self._continued(after), middle]

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def _continued(self, text: str) -> list[int]:
        """Without the blank that some tokenizers write before every text."""
        lead, tokens = self._tokens(ANYTHING), self._tokens(ANYTHING + text)
        adds_blank = self.tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith("▁")
        return tokens[len(lead) :] if adds_blank and tokens[: len(lead)] == lead else self._tokens(text)
