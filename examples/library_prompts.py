"""Chat prompts about the Python standard library, derived from its sources, so that no other data is needed.

    python examples/library_prompts.py --output examples/prompts/smollm2    # the held-out ones

Five routes: questions, texts to rewrite, texts to extract from, docstrings to summarize, small functions to write. A
source file is held out when the hash of its path says so, together with everything that is taken from it.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from corpus import Document, source_files

ROUTES = ("question", "rewrite", "extract", "summary", "code")
QUESTIONS = (
    "What does `{name}` do in Python?",
    "How do I use `{name}` in Python? Give a short example.",
    "Explain `{name}` of the Python standard library to a beginner.",
    "When should I use `{name}` in Python?",
    "What are the arguments of `{name}` in Python, and what does it return?",
    "I found `{name}` in a Python program. What is it for?",
)
MODULE_QUESTIONS = (
    "What is the Python module `{name}` for?",
    "Give me an overview of the Python module `{name}`.",
    "Which problems does the Python module `{name}` solve?",
    "Show me how to use the Python module `{name}`.",
)
# Packages that users do not ask about.
UNUSUAL = {"lib2to3", "idlelib", "turtledemo", "ensurepip"}
TYPOS = {"the": "teh", "that": "taht", "which": "wich", "return": "retrun", "with": "whit", "string": "strign"}


@dataclass(frozen=True)
class Piece:
    """An object of the library with a docstring. name: dotted. code: its source if it is a short function, else ""."""

    file: str
    name: str
    doc: str
    code: str
    arguments: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        return Document("", self.file, "").held_out


def pieces(place: str = "stdlib") -> Iterator[Piece]:
    for file, text in source_files(place):
        parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
        if any(part.startswith("_") for part in parts) or parts[0] in UNUSUAL:
            continue
        try:
            yield from _of(ast.parse(text), file, ".".join(parts), text.splitlines())
        except SyntaxError:
            continue


def _of(node: ast.AST, file: str, name: str, lines: list[str]) -> Iterator[Piece]:
    found = ast.get_docstring(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
    if found and len(found) >= 40 and found.isascii():
        function = isinstance(node, ast.FunctionDef)
        code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) if function else ""
        arguments = tuple(one.arg for one in node.args.args if one.arg != "self") if function else ()
        yield Piece(file, name, found, code if len(code) <= 900 and code.isascii() else "", arguments)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
            yield from _of(child, file, f"{name}.{child.name}", lines)


def paragraphs(doc: str) -> list[str]:
    """The paragraphs of running text with 80 to 600 characters, each on one line."""
    found = [re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", doc)]
    return [part for part in found if 80 <= len(part) <= 600 and part[0].isupper() and part.count(" ") >= 10]


def question(piece: Piece, rng: random.Random) -> str | None:
    return rng.choice(QUESTIONS if "." in piece.name else MODULE_QUESTIONS).format(name=piece.name)


def rewrite(piece: Piece, rng: random.Random) -> str | None:
    if piece.code and piece.arguments and rng.random() < 0.35:
        old = rng.choice(piece.arguments)
        return rng.choice(
            (
                f"Rename the argument `{old}` to `{old}_value` in this code:\n\n```python\n{piece.code}\n```",
                f"Add type hints to this function:\n\n```python\n{piece.code}\n```",
                f"Rewrite this function without its docstring:\n\n```python\n{piece.code}\n```",
            )
        )
    found = paragraphs(piece.doc)
    if not found:
        return None
    text = rng.choice(found)
    if rng.random() < 0.5:
        wrong = re.sub(r"[a-z]+", lambda word: TYPOS.get(word[0], word[0]) if rng.random() < 0.7 else word[0], text)
        return f"Correct the spelling of this text. Change nothing else.\n\n{wrong}"
    task = rng.choice(("in simpler words", "for a beginner", "as a list of short points", "more politely"))
    return f"Rewrite this text {task}:\n\n{text}"


def extract(piece: Piece, rng: random.Random) -> str | None:
    if piece.code and rng.random() < 0.5:
        task = rng.choice(
            (
                "List the names of all functions that this code calls.",
                "Quote the lines of this code that return something.",
                "Copy the docstring of this function.",
                "Copy the first five lines of this code.",
            )
        )
        return f"{task}\n\n```python\n{piece.code}\n```"
    found = paragraphs(piece.doc)
    if not found:
        return None
    text = " ".join(found)[:900]
    words = sorted(set(re.findall(r"[a-z]{6,}", text)))
    if not words:
        return None
    return rng.choice(
        (
            f'Quote the sentence that has the word "{rng.choice(words)}":\n\n{text}',
            f"Quote the first sentence of this text, and then the last one:\n\n{text}",
            f"List the technical terms of this text:\n\n{text}",
            f"Copy this text, each sentence on a line of its own:\n\n{text}",
        )
    )


def summary(piece: Piece, rng: random.Random) -> str | None:
    if not 150 <= len(piece.doc) <= 1200:
        return None
    task = rng.choice(("in one sentence", "in two sentences", "in three short points", "in your own words"))
    return f"Summarize {task} what `{piece.name}` does. Its documentation:\n\n{piece.doc}"


def code(piece: Piece, rng: random.Random) -> str | None:
    if not piece.code or not piece.arguments:
        return None
    name, first = piece.name.rsplit(".", 1)[-1], re.split(r"\n\s*\n|(?<=\.)\s", piece.doc)[0]
    first = re.sub(r"\s+", " ", first)
    bare = re.sub(r'[ ]*[ru]?"{3}.*?"{3}\n?', "", piece.code, flags=re.S)
    return rng.choice(
        (
            f"Write a Python function `{name}({', '.join(piece.arguments)})`. What it does: {first}",
            f"Write a small Python program that uses a function `{name}`. The function: {first}",
            f"Explain this code step by step:\n\n```python\n{piece.code}\n```",
            f"Write a docstring for this function:\n\n```python\n{bare}\n```",
        )
    )


MAKERS: dict[str, Callable[[Piece, random.Random], str | None]] = {
    "question": question,
    "rewrite": rewrite,
    "extract": extract,
    "summary": summary,
    "code": code,
}


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text)
    return set(zip(*(words[place:] for place in range(12)), strict=False))


def prompts(held_out: bool, per_route: int, seed: int = 11, packages: bool = False) -> list[tuple[str, str, str]]:
    """`(route, prompt, file)` of the held-out files, or of all others; no prompt twice, at most `per_route` per route.

    file: the first one that the prompt was taken from. packages: of the installed packages instead of the library.
    """
    found = [piece for piece in pieces("purelib" if packages else "stdlib") if piece.held_out == held_out]
    rows = []
    for route in ROUTES:
        rng = random.Random(f"{seed} {route} {held_out}")
        taken: dict[str, str] = {}
        for piece in [one for _ in range(3) for one in rng.sample(found, len(found))]:
            text = MAKERS[route](piece, rng)
            if text is not None:
                taken.setdefault(text, piece.file)
            if len(taken) == per_route:
                break
        rows += [(route, text, file) for text, file in taken.items()]
    return rows


def unseen(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Those of `prompts` without twelve words in a row of a held-out file: the library and packages repeat some."""
    held = set().union(*(_runs(f"{piece.doc} {piece.code}") for piece in pieces() if piece.held_out))
    return (row for row in rows if held.isdisjoint(_runs(row[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder; one file per route")
    parser.add_argument("--training", action="store_true", help="write the prompts that are not held out")
    parser.add_argument("--packages", action="store_true", help="with --training: half as many of installed packages")
    parser.add_argument("--per-route", type=int, default=60)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = prompts(not arguments.training, arguments.per_route)
    if arguments.training and arguments.packages:
        rows = list(unseen([*rows, *prompts(False, arguments.per_route // 2, packages=True)]))
    for route in ROUTES:
        lines = [
            json.dumps({"route": route, "messages": [{"role": "user", "content": text}]})
            for name, text, _ in rows
            if name == route
        ]
        (arguments.output / f"{route}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{route}: {len(lines)} prompts")


if __name__ == "__main__":
    main()
