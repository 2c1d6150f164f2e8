#!/usr/bin/env python3
"""Installs the wheels whose pieces are in a folder: checks digests, joins the pieces, calls pip. Uses no network.

`scripts/gpu_kit pack` copies this file next to the pieces, so it uses only Python's standard library and pip.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

MANIFEST = "kit.json"
FORMAT = 1
BLOCK = 2**20


class KitError(Exception):
    """One line: what was found, what was expected, what to do."""


@dataclass(frozen=True)
class Part:
    """A wheel or a piece: a file's name, its size in bytes and its SHA-256."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Part:
        with path.open("rb") as file:
            return cls(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())

    def fault(self, folder: Path) -> str:
        """What is wrong with the file of this name in `folder`; empty if nothing is."""
        path = folder / self.name
        if not path.is_file():
            return f"{self.name} is missing"
        found = path.stat().st_size
        if found != self.bytes:
            return f"{self.name} has {found} bytes instead of {self.bytes}"
        return "" if Part.of(path) == self else f"{self.name} is damaged: its SHA-256 differs"


@dataclass(frozen=True)
class Kit:
    """A manifest: the concatenated pieces are the concatenated wheels. python: the version that they are for."""

    python: str
    wheels: tuple[Part, ...]
    pieces: tuple[Part, ...]

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Kit:
        path = folder / MANIFEST
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise KitError(f"{path} has format {found['format']}, this is for {FORMAT}; pack the kit again")
            wheels, pieces = (tuple(Part(**entry) for entry in found[name]) for name in ("wheels", "pieces"))
            return cls(found["python"], wheels, pieces)
        except FileNotFoundError:
            raise KitError(f"{path} is missing; send it along with the pieces") from None
        except (ValueError, KeyError, TypeError):
            raise KitError(f"{path} is damaged; send it again") from None

    def check(self, folder: Path) -> None:
        """Raises a `KitError` that names every piece that is missing or wrong."""
        faults = [fault for piece in self.pieces if (fault := piece.fault(folder))]
        if faults:
            raise KitError(f"{'; '.join(faults)}; send it again")


def recut(sources: Iterable[Path], targets: Iterable[tuple[Path, int]]) -> None:
    """Write files of the given sizes with the concatenated contents of `sources`."""
    files = iter(sources)
    source: IO[bytes] | None = None
    try:
        for path, size in targets:
            with path.open("wb") as target:
                while size:
                    block = source.read(min(size, BLOCK)) if source else b""
                    target.write(block)
                    size -= len(block)
                    if not block:
                        if source:
                            source.close()
                        source = next(files).open("rb")
    finally:
        if source:
            source.close()


def install(folder: Path, target: Path) -> Kit:
    """Install the kit in `folder` into `target`. Raises `KitError`, also for errors of pip; installs nothing then."""
    kit = Kit.read(folder)
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != kit.python:
        raise KitError(
            f"the wheels are for Python {kit.python}, this is {running}; run: python{kit.python} {sys.argv[0]}"
        )
    kit.check(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".gpu_kit-") as work:
        wheels = [Path(work, wheel.name) for wheel in kit.wheels]
        recut(
            (folder / piece.name for piece in kit.pieces),
            zip(wheels, (wheel.bytes for wheel in kit.wheels), strict=True),
        )
        for wheel in kit.wheels:
            if fault := wheel.fault(Path(work)):
                raise KitError(f"{fault}; pack the kit again")
        options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
        done = subprocess.run([*command, "--target", str(target), *map(str, wheels)], check=False)
        if done.returncode:
            raise KitError(f"pip ended with exit code {done.returncode}")
    return kit


def library_folders(target: Path) -> Iterator[Path]:
    """The folders where pip has installed CUDA's libraries: the kit's first, then those of this Python's packages."""
    own = importlib.util.find_spec("nvidia")
    for place in (target / "nvidia", *map(Path, own.submodule_search_locations or () if own else ())):
        yield from (folder for folder in sorted(place.glob("*/lib")) if any(folder.glob("*.so*")))


def settings(target: Path) -> str:
    """The line of shell variables that lets programs use what was installed."""
    libraries = ":".join(map(str, library_folders(target)))
    loader = f' LD_LIBRARY_PATH="{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"' if libraries else ""
    return f'export PYTHONPATH="{target}${{PYTHONPATH:+:$PYTHONPATH}}"{loader}'


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="install", description="Install a kit; prints the shell variables to use it.")
    parser.add_argument("pieces", type=Path, help=f"the folder with the pieces and {MANIFEST}")
    parser.add_argument("target", type=Path, help="the folder to install into")
    asked = parser.parse_args(arguments)
    try:
        kit = install(asked.pieces, asked.target.absolute())
    except (KitError, OSError) as error:
        sys.exit(f"Error: {error}")
    print(f"installed {', '.join('-'.join(wheel.name.split('-')[:2]) for wheel in kit.wheels)}", file=sys.stderr)
    print(settings(asked.target.absolute()))


if __name__ == "__main__":
    main()
