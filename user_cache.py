"""Where what can be made again is kept between processes of one user."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/specexport` or `~/.cache/specexport`.

    A folder that cannot be made where the user has no home, as service users may: then nothing is kept.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specexport"
    except RuntimeError:
        return Path(os.devnull, "specexport")
