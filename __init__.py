"""Compiled speculative decoding at batch 1.

session = specexport.load("llama.bundle")
for chunk in session.stream("def main():"):
    print(chunk.text, end="")
"""

from __future__ import annotations

from .errors import SpecExportError
from .runtime.session import Chunk, Generation, Session, load
from .runtime.statistics import Statistics
from .version import VERSION

__version__ = VERSION
__all__ = ["Chunk", "Generation", "Session", "SpecExportError", "Statistics", "load"]
