"""Says on a terminal that a bundle is being loaded, where that takes a moment."""

from __future__ import annotations

from pathlib import Path
from threading import Timer
from typing import Any

from ..runtime import load as loader
from ..runtime.session import Session

MOMENT = 1.0  # seconds


def load(bundle: Path, **options: Any) -> Session:
    """As `runtime.load`. Its seconds are ONNX Runtime's, which prepares the graphs."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if not console.is_terminal:
        return loader.load(bundle, **options)
    status = console.status(f"loading {escape(str(bundle))}: preparing its graphs")
    timer = Timer(MOMENT, status.start)
    timer.start()
    try:
        return loader.load(bundle, **options)
    finally:
        timer.cancel()
        timer.join()
        status.stop()
