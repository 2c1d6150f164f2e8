"""The checkout: small enough to travel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 48_000_000  # 64 MiB travel to a machine with a GPU, with what is built beside it


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_checkout_stays_small() -> None:
    sizes = {path: path.lstat().st_size for path in tracked()}
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    assert sum(sizes.values()) < MOST_BYTES, f"the largest are {[str(path.relative_to(ROOT)) for path in largest]}"
