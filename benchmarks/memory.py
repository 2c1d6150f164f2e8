"""Where a server's memory goes: what grows with requests, how far, and what of it the allocator merely keeps.

    python benchmarks/memory.py demo.bundle                                     # all parts, a process for each
    MALLOC_MMAP_THRESHOLD_=65536 python benchmarks/memory.py demo.bundle --part cache

Linux with glibc. Each line: how many were asked, resident memory, then of the heaps what is in use, what is free, and
what is mapped on its own, all in MiB. What it says of the demo bundle is in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import specexport
from specexport.bundle import Bundle
from specexport.engines.onnxruntime.cpu import load
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.grammar import Grammar
from specexport.runtime.state.conversations import Conversations
from specexport.runtime.text.encode import PromptEncoder

MIB = 1 << 20
LETTERS = "abcdefghijklmnopqrstuvwxyz    "
# Each text adds states to the lexer.
REGEX = Grammar.regex("[a-z ]{1,200}(foo|bar)[^x]{3,90}(y|zz|aa)[a-z0-9]*")
Steps = Iterator[None]


def heaps() -> tuple[float, float, float]:
    """MiB of all of glibc's heaps: in use, free, mapped on their own."""
    libc, text, size = ctypes.CDLL(None), ctypes.c_char_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    total = (text.value or b"").decode().rpartition("</heap>")[2]
    libc.free(text)
    free = sum(int(number) for number in re.findall(r'type="(?:fast|rest)" count="\d+" size="(\d+)"', total))
    found = re.search(r'type="mmap" count="\d+" size="(\d+)".*?type="current" size="(\d+)"', total, re.DOTALL)
    assert found is not None
    return (int(found[2]) - free) / MIB, free / MIB, int(found[1]) / MIB


def resident() -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) / 1024


def widths(bundle: Path) -> Steps:
    """A short prompt, then prompts of every number of tokens up to a chunk, the longest first."""
    chance = random.Random(0)
    with specexport.load(bundle, threads=1, check_digests=False) as session:
        chunk = session.bundle.manifest.contract.prompt_chunk
        session.generate([300] * 10, max_new_tokens=8)
        while True:
            yield
            for width in (chunk, chunk, *range(2, chunk + 1)):
                prompt = [chance.randrange(300, 600) for _ in range(width)]
                session.generate(prompt, max_new_tokens=4, temperature=0)
                yield


def cache(bundle: Path, mib: int = 64) -> Steps:
    """Sequences of random lengths in a prompt cache."""
    chance, engine = random.Random(0), load(Bundle.open(bundle), threads=1)
    decoders = [engine.target, *([engine.draft.decoder] if engine.draft else [])]
    rows = [sum(array.nbytes for array in decoder.read_rows(1)) for decoder in decoders]
    kept = Conversations(mib * MIB, rows)
    for decoder in decoders:
        decoder.overwrite_rows(0, 1.0)
    while True:
        count = chance.choice((chance.randint(10, 120), chance.randint(120, 900)))
        tokens = [chance.randrange(4000) for _ in range(count)]
        kept.save(tokens, None, [(decoder, count) for decoder in decoders], 0)
        yield


def texts(bundle: Path) -> Steps:
    """Texts of random words to tokens."""
    chance, encoder = random.Random(0), PromptEncoder(Bundle.open(bundle))
    while True:
        encoder.encode("".join(chance.choices(LETTERS, k=300)))
        yield


def _compiler(bundle: Path) -> GrammarCompiler:
    opened = Bundle.open(bundle)
    return GrammarCompiler.of(opened, PromptEncoder(opened).tokenizer.to_str)


def schemas(bundle: Path) -> Steps:
    """A new schema each time."""
    compiler, number = _compiler(bundle), 0
    while True:
        number += 1
        name = f"n{number}"
        schema = {"type": "object", "properties": {name: {"type": "string", "maxLength": 40}}, "required": [name]}
        compiler.compile(Grammar.json_schema(schema)).allowed()
        yield


def regex(bundle: Path) -> Steps:
    """One regex, and random texts of up to 200 tokens that match it."""
    compiler, chance = _compiler(bundle), np.random.default_rng(0)
    while True:
        matcher = compiler.compile(REGEX)
        for _ in range(200):
            tokens = np.flatnonzero(matcher.allowed())
            if matcher.done or not len(tokens):
                break
            matcher.advance(int(chance.choice(tokens)))
        yield


PARTS: dict[str, tuple[Callable[[Path], Steps], tuple[int, ...]]] = {
    "widths": (widths, (1, 2, 3, 65, 129, 258, 516)),
    "cache": (cache, (100, 1000, 3000, 10_000)),
    "texts": (texts, (1, 400, 20_000)),
    "schemas": (schemas, (1, 75, 300, 1500)),
    "regex": (regex, (1, 500, 2500, 4000)),
}


def measure(name: str, bundle: Path, mib: int) -> None:
    steps, shown = PARTS[name]
    asked, begun = cache(bundle, mib) if name == "cache" else steps(bundle), time.process_time()
    for number in range(1, shown[-1] + 1):
        next(asked)
        if number in shown:
            used, free, mapped = heaps()
            values = {"asked": number, "rss": resident(), "used": used, "free": free, "mapped": mapped}
            values["cpu_seconds"] = time.process_time() - begun
            print(json.dumps({"part": name} | {key: round(value, 1) for key, value in values.items()}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Where a server's memory goes.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--part", choices=PARTS, help="all by default")
    parser.add_argument("--mib", type=int, default=64, help="of the prompt cache")
    given = parser.parse_args()
    if given.part:
        measure(given.part, given.bundle, given.mib)
        return 0
    parts = ([sys.executable, __file__, str(given.bundle), "--part", name] for name in PARTS)
    return max(subprocess.run(command, check=False).returncode for command in parts)


if __name__ == "__main__":
    sys.exit(main())
