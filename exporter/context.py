"""The context that every step of a build shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..bundle import Contract
from ..editing.progress import Timed


@dataclass(frozen=True)
class BuildContext:
    """contract: of both models. workplace: the folder that becomes the bundle. cache: of finished stages."""

    contract: Contract
    workplace: Path
    cache: Path
    progress: Timed
