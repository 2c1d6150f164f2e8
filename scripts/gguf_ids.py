"""Compares the ids that a GGUF file's tokenizer gives here with llama.cpp's, on 10 000 lines of mixed text.

    pip install llama-cpp-python                       # into an environment of its own; it compiles llama.cpp
    python scripts/gguf_ids.py FILE.gguf               # as the file is
    python scripts/gguf_ids.py FILE.gguf --every-pre   # its vocabulary, split in each of the ways known here

The text is made of the repository's files, of Python's library and of ranges of Unicode, the same on each run.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sysconfig
import tempfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFWriter
from specexport.exporter.checkpoints.gguf_tokenizer import SPLITS, read_tokenizer
from write_gguf import add_value, finish

ROOT = Path(__file__).parents[1]
FILES = ("*.md", "docs/**/*.md", "exporter/**/*.py", "runtime/**/*.py"), ("*.py", "json/*.py", "email/*.py")
ASCII = (0x20, 0x7E)
# Latin, Greek, Cyrillic, Hebrew, Arabic, Indic, Thai, Georgian, Hangul, marks, symbols, numbers, kana, Han, emoji.
RANGES = (
    *(ASCII, ASCII, ASCII, (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x530, 0x6FF), (0x900, 0x9FF)),
    *((0xB80, 0xBFF), (0xE00, 0xE7F), (0x10A0, 0x11FF), (0x1E00, 0x20CF), (0x2100, 0x22FF), (0x2460, 0x27BF)),
    *((0x2C00, 0x2DFF), (0x3000, 0x318F), (0x3400, 0x3500), (0x4E00, 0x9FFF), (0xA720, 0xA7FF), (0xAC00, 0xD7A3)),
    *((0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x10400, 0x104FF), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F)),
    *((0x1F680, 0x1F6FF), (0x1F900, 0x1F9FF), (0x20000, 0x20100)),
)
PIECES = (
    *(" ", "  ", "    ", "\n", "\n\n", "\t", " \n", "\r\n", "\x85", "\u00a0", "\u2028", "\u3000", "\u200d", "\ufe0f"),
    *("'s", "'LL", "'t ", "1", "12", "123", "1234", "2024", "3.14", "10,000", "1. ", "| ", "||", "--", "...", "a"),
    *("The", "foo_bar", "fooBar", "HTTPServer", "x = ", "<|im_start|>", "<|im_end|>"),
)


def mixed_lines(count: int = 10_000, seed: int = 7) -> list[str]:
    chance = random.Random(seed)
    found: set[str] = set()
    for folder, patterns in zip((ROOT, Path(sysconfig.get_paths()["stdlib"])), FILES, strict=True):
        for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
            found |= {line for line in path.read_text(encoding="utf-8", errors="ignore").splitlines() if line.strip()}
    lines = chance.sample(sorted(found), count // 2)
    while len(lines) < count:
        lines.append("".join(_piece(chance) for _ in range(chance.randint(1, 9))))
    return lines


def _piece(chance: random.Random) -> str:
    if chance.random() < 0.45:
        return chance.choice(PIECES)
    first, last = chance.choice(RANGES)
    drawn = (chr(chance.randint(first, last)) for _ in range(chance.randint(1, 6)))
    # Which letters there are depends on the version of Unicode that each side has.
    return "".join(character for character in drawn if unicodedata.category(character) != "Cn")


_silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


class LlamaCpp:
    """llama.cpp's tokenizer of a file, which needs no weights."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self.library = llama_cpp
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        options = llama_cpp.llama_model_default_params()
        options.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot read {path}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """special: whether the BOS and EOS tokens are added that the file asks for."""
        given = text.encode()
        room = (self.library.llama_token * (len(given) + 8))()
        count = self.library.llama_tokenize(self.vocabulary, given, len(given), room, len(room), special, True)
        return list(room[:count])

    def close(self) -> None:
        self.library.llama_model_free(self.model)


def values_of(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in GGUFReader(path).fields.items()}


def write_vocabulary(values: dict[str, Any], path: Path) -> Path:
    """A file without weights that has the tokenizer of `values`."""
    writer = GGUFWriter(path, "llama")
    writer.add_name(values.get("general.name", path.stem))
    for key, value in values.items():
        if key.startswith("tokenizer.ggml."):
            add_value(writer, key, value)
    finish(writer)
    return path


def differences(path: Path, lines: Sequence[str]) -> list[str]:
    """The lines to which llama.cpp gives other ids, with and without the tokens that are added at the ends."""
    theirs = LlamaCpp(path)
    ours = read_tokenizer(str(path), values_of(path))
    found = [
        line
        for line in lines
        if theirs.encode(line) != ours.encode(line, add_special_tokens=False)
        or theirs.encode(line, special=True) != ours.encode(line)
    ]
    theirs.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every-pre", action="store_true")
    arguments = parser.parse_args()
    lines = mixed_lines()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for pre in SPLITS if arguments.every_pre else (None,):
            file = arguments.file
            if pre is not None:
                # Whether a text begins with BOS is then left to the name.
                values = {key: value for key, value in values_of(file).items() if not key.endswith("add_bos_token")}
                file = write_vocabulary(values | {"tokenizer.ggml.pre": pre}, Path(folder) / f"{pre}.gguf")
            found = differences(file, lines)
            wrong += len(found)
            example = f", such as {min(found, key=len)!r}" if found else ""
            print(
                f"{file.stem}: {len(lines) - len(found)} of {len(lines)} lines have llama.cpp's ids{example}",
                flush=True,
            )
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
