"""Compiled speculative decoding at batch 1.

session = specexport.load("llama.bundle")
for chunk in session.stream("def main():"):
    print(chunk.text, end="")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import SpecExportError
from .version import VERSION

if TYPE_CHECKING:
    from .runtime.grammar.grammar import Grammar
    from .runtime.load import load
    from .runtime.loop.chunks import Chunk
    from .runtime.sampling.parameters import SamplingParameters
    from .runtime.session import Session
    from .runtime.state.statistics import Statistics
    from .runtime.stream import Generation, Stream
else:
    _MODULES = {
        "Chunk": "loop.chunks",
        "Generation": "stream",
        "Grammar": "grammar.grammar",
        "SamplingParameters": "sampling.parameters",
        "Session": "session",
        "Statistics": "state.statistics",
        "Stream": "stream",
        "load": "load",
    }

    def __getattr__(name: str) -> object:
        # The command line imports this package too, and its --help needs neither numpy nor tokenizers.
        from importlib import import_module

        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".runtime.{_MODULES[name]}", __name__), name)

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]


__version__ = VERSION
__all__ = [
    "Chunk",
    "Generation",
    "Grammar",
    "SamplingParameters",
    "Session",
    "SpecExportError",
    "Statistics",
    "Stream",
    "load",
]
