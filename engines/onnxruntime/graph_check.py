"""Checks a graph's inputs and outputs against the manifest: caches are bound by address, so nothing may differ.

Also checks that a graph was not closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...errors import BundleError, EngineError

T = TypeVar("T")

# ONNX Runtime's name of an element type, and a shape; a size is None if the manifest does not state it.
Signature = tuple[str, Sequence[int | str | None]]


def check_graph(path: Path, session: Any, expected: Mapping[str, Signature | None]) -> None:
    """Check the graph of an `InferenceSession`. expected: signatures by the name of an input or output, None if only
    the name matters. Raises `BundleError`.
    """
    found = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
    again = "build the bundle again"
    if names := found.keys() ^ expected.keys():
        raise BundleError(
            f"{path}: the inputs and outputs {', '.join(sorted(names))} do not match the manifest; {again}"
        )
    for name, signature in expected.items():
        if signature is None:
            continue
        kind, shape = signature
        there = found[name]
        fits = len(there.shape) == len(shape) and all(
            size is None or size == given for size, given in zip(shape, there.shape, strict=True)
        )
        if there.type != kind or not fits:
            said = [given if size is None else size for size, given in zip(shape, there.shape, strict=False)]
            raise BundleError(
                f"{path}: {name} is a {there.type} {there.shape}, the manifest says {kind} {said}; {again}"
            )


def still_open(session: T | None, path: Path) -> T:
    """The session of the graph at `path`. Raises `EngineError` if it is None, because it was closed."""
    if session is None:
        raise EngineError(f"{path} was closed; load the bundle again")
    return session
