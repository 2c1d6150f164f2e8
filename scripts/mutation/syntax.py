"""Pieces of Python found by their syntax tree: layout, comments and parentheses do not matter."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Piece:
    """kind: "expression", "statements", or the statement, "If" or "While", whose condition this is.

    trees: of its nodes in sequence, as text. source: what stands for it in a file.
    """

    kind: str
    trees: tuple[str, ...]
    source: str


def replaced(source: str, old: str, new: str, within: str = "") -> list[str]:
    """The source with `new` in place of `old`, once for each place of `old`; [] also if one is not a whole piece.

    within: the qualified name of a function or class to look in. No statement at all in `new` stands for `pass`.
    """
    both = [(ours, theirs) for ours, theirs in zip(_pieces(old), _pieces(new), strict=True) if ours and theirs]
    both = [(ours, theirs) for ours, theirs in both if ours.kind == theirs.kind]
    if not both:
        return []
    (piece, other), data, versions = both[0], source.encode(), []
    before = [0]
    for line in data.splitlines(keepends=True):
        before.append(before[-1] + len(line))
    for nodes in _nodes(source, within, piece):
        if tuple(map(_dumped, nodes)) != piece.trees:
            continue
        lineno = min(one.lineno for one in (nodes[0], *getattr(nodes[0], "decorator_list", ())))
        start = before[lineno - 1] + nodes[0].col_offset
        end = before[(nodes[-1].end_lineno or 0) - 1] + (nodes[-1].end_col_offset or 0)
        indent, there = " " * nodes[0].col_offset, data[start:end].decode(errors="replace")
        # Python before 3.12 does not say where in an f-string an expression stands.
        if any(one and one.trees == piece.trees for one in _pieces(indent + there)):
            text = textwrap.indent(other.source, indent).lstrip(" ")
            versions.append((data[:start] + text.encode() + data[end:]).decode())
    return versions


def _pieces(text: str) -> list[Piece | None]:
    """What a text may be, the likeliest first: an expression, the head of an `if` or `while`, statements."""
    text = textwrap.dedent(text).strip()
    expression = _parsed(f"(\n{text}\n)") if text else []
    head = _parsed(text.removeprefix("el") + "\n pass") if text.endswith(":") or ":  #" in text else []
    statements = _parsed(text or "pass")
    found: list[Piece | None] = [None, None, None]
    if len(expression) == 1 and isinstance(expression[0], ast.Expr):
        value = expression[0].value
        found[0] = Piece("expression", (_dumped(value),), f"({ast.unparse(value)})")
    if len(head) == 1 and isinstance(head[0], ast.If | ast.While):
        test = head[0].test
        found[1] = Piece(type(head[0]).__name__, (_dumped(test),), f"({ast.unparse(test)})")
    if statements:
        found[2] = Piece("statements", tuple(map(_dumped, statements)), text or "pass")
    return found


def _parsed(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except SyntaxError:
        return []


def _dumped(node: ast.AST) -> str:
    return re.sub(r"(Load|Store|Del)\(\)", "", ast.dump(node, annotate_fields=False))


@lru_cache(maxsize=4)
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def _named(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Functions and classes of this qualified name, or the node itself for no name."""
    if not name:
        yield node
        return
    first, _, rest = name.partition(".")
    for child in ast.walk(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == first:
            yield from _named(child, rest)


def _nodes(source: str, within: str, piece: Piece) -> Iterator[tuple[ast.expr, ...] | tuple[ast.stmt, ...]]:
    for scope in _named(_tree(source), within):
        for node in ast.walk(scope):
            if piece.kind == "statements":
                for field in ("body", "orelse", "finalbody"):
                    block, size = getattr(node, field, None), len(piece.trees)
                    if isinstance(block, list):
                        yield from (tuple(block[at : at + size]) for at in range(len(block) - size + 1))
            elif piece.kind == "expression" and isinstance(node, ast.expr):
                yield (node,)
            elif type(node).__name__ == piece.kind:
                yield (node.test,)  # type: ignore[attr-defined]
