"""The user's cache folder, for files that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/specexport` or `~/.cache/specexport`.

    For a user without a home, e.g. a service user, it is a path that cannot be created, so that nothing is cached.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specexport"
    except RuntimeError:
        return Path(os.devnull, "specexport")
