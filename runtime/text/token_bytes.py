"""The bytes of each token.

They follow from the decoder that `tokenizer.json` declares: the byte alphabet of GPT-2, "▁" for a space and `<0x0A>`
for a byte, "##" for the rest of a word, or else plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# GPT-2's: printable bytes are themselves, the others follow beyond Latin-1.
BYTE_ALPHABET = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(_OTHERS)
}


def spelled(tokenizer: Mapping[str, Any]) -> dict[int, bytes]:
    """The bytes of every id of a parsed `tokenizer.json` inside a text, special tokens included."""
    parts = list(_parts(tokenizer))
    # no other part changes added tokens
    spaces = [part for part in parts if part["type"] in ("Replace", "Metaspace")]
    spellings = {token: _bytes(name, parts) for token, name in token_names(tokenizer).items()}
    return spellings | {entry["id"]: _bytes(entry["content"], spaces) for entry in tokenizer.get("added_tokens") or ()}


def token_names(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """The model's tokens in their written form, without the added ones."""
    vocabulary = tokenizer["model"].get("vocab", {})
    if isinstance(vocabulary, list):  # unigram: (token, score) in the order of ids
        return {index: entry[0] for index, entry in enumerate(vocabulary)}
    return {index: token for token, index in vocabulary.items()}


def _parts(tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The steps that turn tokens into text: the decoder's parts or, without a decoder, those of the pre-tokenizer,
    which made them.
    """
    if tokenizer["model"].get("byte_fallback"):
        yield {"type": "ByteFallback"}
    yield from _flat(tokenizer.get("decoder") or tokenizer.get("pre_tokenizer"))


def _flat(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
    for inner in (*part.get("decoders", ()), *part.get("pretokenizers", ())):
        yield from _flat(inner)


def _bytes(token: str, parts: list[Mapping[str, Any]]) -> bytes:
    """The bytes of a token in the middle of a text."""
    for part in parts:
        match part:
            case {"type": "ByteLevel"} if all(character in BYTE_ALPHABET for character in token):
                return bytes(BYTE_ALPHABET[character] for character in token)
            case {"type": "ByteFallback"} if number := BYTE_FALLBACK.fullmatch(token):
                return bytes([int(number[1], 16)])
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                token = token.replace(pattern, content)
            case {"type": "Metaspace", "replacement": pattern}:
                token = token.replace(pattern, " ")
            case {"type": "WordPiece", "prefix": prefix}:
                token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
            case {"type": "BPEDecoder", "suffix": suffix} if suffix:
                token = f"{token.removesuffix(suffix)} " if token.endswith(suffix) else token
    return token.encode()
