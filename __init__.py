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
    from .runtime.session import Chunk, Generation, Session, load
    from .runtime.state.statistics import Statistics
else:

    def __getattr__(name: str) -> object:
        # The command line imports this package too, and its --help needs neither numpy nor tokenizers.
        if name == "Statistics":
            from .runtime.state import statistics as module
        elif name in __all__:
            from .runtime import session as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]


__version__ = VERSION
__all__ = ["Chunk", "Generation", "Session", "SpecExportError", "Statistics", "load"]
