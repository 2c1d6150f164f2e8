"""The demo corpus: the Python standard library's sources and its English documentation.

    python examples/corpus.py --output examples/prompts     # writes the held-out prompts, one JSONL file per route

A file is held out when the hash of its path says so, and its docstrings go with it, so a held-out
prompt is text that neither model of the demo pair has seen. `random` prompts are characters of several scripts
without any order; `random` documents for training are lines of decimal digits. `copy` prompts ask for a held-out text
again: to quote it from its first line on, or with the first line edited.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROUTES = ("code", "prose", "random", "copy")
HELD_OUT_PERCENT = 6
# Headers of a text and of its copy.
COPY_HEADERS = (("# Original:\n", "\n# Copy:\n"), ("# Before:\n", "\n# After:\n"))
# Character tables and generated data are neither code that people write nor prose.
SKIPPED_FOLDERS = {"test", "tests", "site-packages", "encodings", "pydoc_data", "__pycache__", "idle_test"}
SKIPPED_FILES = {"_sysconfigdata", "keycodes", "html/entities.py"}


@dataclass(frozen=True)
class Document:
    route: str
    name: str
    text: str

    @property
    def held_out(self) -> bool:
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def source_files(place: str = "stdlib") -> Iterator[tuple[str, str]]:
    """Yield `(relative path, text)` of every standard library module, tests and tables left out; with "purelib" of the
    installed packages.
    """
    library = Path(sysconfig.get_paths()[place])
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if SKIPPED_FOLDERS & set(relative.parts) or any(part in str(relative) for part in SKIPPED_FILES):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.strip():
            yield relative.as_posix(), text


def docstrings(text: str) -> Iterator[str]:
    """Yield the docstrings of a module that are long enough to read as prose."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node)
            if found and len(found) >= 200:
                yield found


def random_document(rng: random.Random, lines: int) -> str:
    return "\n".join("".join(rng.choices("0123456789", k=64)) for _ in range(lines))


def random_text(rng: random.Random, length: int) -> str:
    """Characters of several scripts without any order."""
    ranges = [(0x21, 0x7E), (0x3B1, 0x3C9), (0x430, 0x44F), (0x4E00, 0x9FFF), (0x20, 0x20)]
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(length))


def documents() -> list[Document]:
    from pydoc_data.topics import topics

    found = []
    for name, text in source_files():
        found.append(Document("code", name, text))
        prose = "\n\n".join(docstrings(text))
        if prose:
            found.append(Document("prose", name, prose))
    found += [Document("prose", f"topic:{name}", text) for name, text in sorted(topics.items())]
    rng = random.Random(20)
    found += [Document("random", f"random:{i}", random_document(rng, 16)) for i in range(160)]
    return found


def cut_prompts(document: Document, rng: random.Random) -> Iterator[str]:
    """Yield starts of generation: 200 to 700 characters that end at a line of the document."""
    lines = document.text.splitlines(keepends=True)
    start = 0
    while start < len(lines):
        length = rng.randint(200, 700)
        prompt, end = "", start
        while end < len(lines) and len(prompt) < length:
            prompt += lines[end]
            end += 1
        if len(prompt) >= 200:
            yield prompt[:900]
        start = end + 8


def copy_prompt(text: str, edit: bool) -> str:
    """A text, the header of its copy, and the copy's first line."""
    before, after = COPY_HEADERS[1 if edit else 0]
    first = text.splitlines(keepends=True)[0]
    return f"{before}{text}{after}{first.rstrip()}  # edited\n" if edit else f"{before}{text}{after}{first}"


def write_prompts(output: Path, per_route: int) -> None:
    rng = random.Random(7)
    held_out = [document for document in documents() if document.held_out]
    output.mkdir(parents=True, exist_ok=True)
    for route in ROUTES:
        if route == "random":
            prompts = [random_text(rng, rng.randint(40, 120)) for _ in range(per_route)]
        elif route == "copy":
            found = [p for d in held_out if d.route in ("code", "prose") for p in cut_prompts(d, rng) if len(p) >= 400]
            prompts = [
                copy_prompt(text, edit=index % 2 == 1) for index, text in enumerate(rng.sample(found, per_route))
            ]
        else:
            found = [p for d in held_out if d.route == route for p in cut_prompts(d, rng)]
            prompts = rng.sample(found, min(per_route, len(found)))
        rows = [json.dumps({"route": route, "prompt": prompt}, ensure_ascii=False) for prompt in prompts]
        (output / f"{route}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        print(f"{route}: {len(rows)} prompts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "prompts")
    parser.add_argument("--per-route", type=int, default=240)
    arguments = parser.parse_args()
    write_prompts(arguments.output, arguments.per_route)


if __name__ == "__main__":
    main()
