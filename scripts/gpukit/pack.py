"""Cuts wheels into pieces, and plans how to send them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import install
from .install import Kit, KitError, Part, recut

ROOT = Path(__file__).parents[2]
INSTALLER = "install"


def pack(wheels: Sequence[Path], folder: Path, piece_bytes: int, python: str) -> Kit:
    """Write pieces, manifest and installer into `folder`. Pieces that are already there and correct are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = list(_sizes(sum(wheel.stat().st_size for wheel in wheels), piece_bytes))
    drafts = [folder / f"piece-{number:02d}.part" for number in range(1, len(sizes) + 1)]
    recut(wheels, zip(drafts, sizes, strict=True))
    pieces = []
    for draft in drafts:
        path = draft.with_suffix(".bin")
        found = Part.of(draft)
        pieces.append(Part(path.name, found.bytes, found.sha256))
        if pieces[-1].fault(folder):
            draft.replace(path)
        else:
            draft.unlink()
    kit = Kit(python, tuple(Part.of(wheel) for wheel in wheels), tuple(pieces))
    for stale in {path.name for path in folder.glob("piece-*")} - {piece.name for piece in pieces}:
        (folder / stale).unlink()
    kit.write(folder)
    shutil.copy(Path(install.__file__), folder / INSTALLER)
    (folder / INSTALLER).chmod(0o755)
    return kit


def _sizes(total: int, largest: int) -> Iterator[int]:
    while total:
        size = min(total, largest)
        yield size
        total -= size


def contents(kit: Kit) -> list[tuple[Part, list[str]]]:
    """Each piece, and the wheels that it contains a part of."""
    found: list[tuple[Part, list[str]]] = []
    start = 0
    for piece in kit.pieces:
        place, names = 0, []
        for wheel in kit.wheels:
            if place < start + piece.bytes and start < place + wheel.bytes:
                names.append(wheel.name)
            place += wheel.bytes
        found.append((piece, names))
        start += piece.bytes
    return found


def sends(kit: Kit, beside: int, most: int) -> int:
    """How many transfers of at most `most` bytes are needed, if `beside` bytes of each are already taken.

    Raises `KitError` if a piece does not fit.
    """
    count, free = 0, -1
    for piece in kit.pieces:
        if piece.bytes > most - beside:
            raise KitError(
                f"a piece of {piece.bytes} bytes and the checkout's {beside} are more than {most}; "
                "take a smaller --piece-mb or a sparse checkout (docs/internals/gpu-first-minutes.md)"
            )
        if piece.bytes > free:
            count, free = count + 1, most - beside
        free -= piece.bytes
    return count


def checkout_bytes() -> int:
    """Bytes of the tracked files of this checkout; 0 outside of one."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    files = (ROOT / name for name in done.stdout.split("\0") if name)
    return sum(file.stat().st_size for file in files if file.is_file())
