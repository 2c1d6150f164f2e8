"""What each version of TensorRT knows: writes tests/support/tensorrt_versions.json.

    python scripts/tensorrt_versions.py WHEELS ONNX_TENSORRT TENSORRT

WHEELS: a folder with wheels of `tensorrt-cu12-bindings` and `tensorrt-cu13-bindings`, one of each version.
ONNX_TENSORRT: a clone of onnx/onnx-tensorrt, with its branch 10.1-GA. TENSORRT: a clone of NVIDIA/TensorRT, for the
changelog of its branch release/11.1.

The table has operators by the version that first reads them (those of 10.1 under 10.3, the oldest that is used here);
which of 10.1's become layers that wait for a value on the device; and the bindings' names that came after 10.3 or are
gone in the newest. A test compares the rows that ship with it (`SINCE` in engines/tensorrt/api.py). The bindings cannot
be imported without TensorRT's libraries, so these are read as text: whatever could be a name of several words, or of a
class or an enumerator.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import onnx

TABLE = Path(__file__).parent.parent / "tests/support/tensorrt_versions.json"
OLDEST = (10, 3)
NAME = re.compile(rb"(?<![A-Za-z0-9_])([A-Za-z]\w{4,})\0")
# What looks like a name of the bindings and is none (mangled, two in one, pybind11's), and what says too little.
OTHER = re.compile(
    r"Py[A-Z]|tp_|pthread_|cu[A-Z]|\w*(GLIBC|[Cc][Xx][Xx]|nvinfer|nvonnxparser|pybind|tensorrt\d)|[a-z0-9]+$"
    r"|P?FbR|St\d|\w*get_\w+[a-z]get_|(aligned|basic|co|dict|load_as|raw_pointer)_|CapsuleType|NumpyVersion"
    r"|dreallocate|pluginsX|report_algorithmI"
)
IMPORTER = re.compile(r"^DEFINE_BUILTIN_OP_IMPORTER\((\w+)\)", re.MULTILINE)
# Calls that make layers which wait for a value on the device.
WAITS = re.compile(r"\baddLoop\(\)|addIfConditional\(|addNonZero\(")
HELPERS = re.compile(r"^[\w:<>*& ]+?\b(\w+)\([^;{}]*?\)\n\{(.*?)^\}", re.MULTILINE | re.DOTALL)

Version = tuple[int, int]


def libraries(folder: Path) -> dict[Version, bytes]:
    """Those of each version, the oldest first."""
    found: dict[Version, bytes] = {}
    for wheel in folder.glob("tensorrt_cu1*_bindings-*.whl"):
        major, minor = map(int, wheel.name.split("-")[1].split(".")[:2])
        with ZipFile(wheel) as opened:
            library = next(name for name in opened.namelist() if name.endswith("/tensorrt.so"))
            found[major, minor] = found.get((major, minor), b"") + opened.read(library)
    return dict(sorted(found.items()))


def names(library: bytes) -> set[str]:
    return {word for word in (found.decode() for found in NAME.findall(library)) if not OTHER.match(word)}


def lacks(library: bytes, name: str) -> bool:
    """A linker stores a string that is another's end as a part of that."""
    return name.encode() + b"\0" not in library


def importers(repository: Path) -> dict[str, str]:
    """The source of each operator's importer in ONNX-TensorRT 10.1, by operator; helpers by their own names."""
    found: dict[str, str] = {}
    for file in (
        "onnxOpImporters.cpp",
        "importerUtils.cpp",
        "RNNHelpers.cpp",
        "LoopHelpers.cpp",
        "ConditionalHelpers.cpp",
    ):
        text = _git(repository, f"10.1-GA:{file}")
        found |= {name: body for name, body in HELPERS.findall(text) if name != "DEFINE_BUILTIN_OP_IMPORTER"}
        starts = [*IMPORTER.finditer(text)]
        ends = [*(match.start() for match in starts[1:]), len(text)]
        found |= {match[1]: text[match.end() : end] for match, end in zip(starts, ends, strict=False)}
    return found


def operators(tensorrt: Path) -> Iterator[tuple[Version, str]]:
    """Those that the changelog names as new."""
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    sections = re.split(r"^## (\d+)\.(\d+)\S* GA.*$", _git(tensorrt, "release/11.1:CHANGELOG.md"), flags=re.MULTILINE)
    for major, minor, text in zip(sections[1::3], sections[2::3], sections[3::3], strict=True):
        for line in re.findall(r"Added support for (.*)", text):
            yield from (((int(major), int(minor)), name) for name in re.findall(r"`(\w+)`", line) if name in known)


def table(wheels: Path, onnx_tensorrt: Path, tensorrt: Path) -> dict[str, Mapping[str, str] | str]:
    """Names are separated by spaces."""
    sources, by_version = importers(onnx_tensorrt), libraries(wheels)
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    old = {name for name in sources if name in standard}
    waiting = {name for name in old if _waits(name, sources, set())}
    new = {_text(OLDEST): sorted(old)}
    for version, name in sorted(operators(tensorrt)):
        if version > OLDEST and name not in chain(*new.values()):
            new.setdefault(_text(version), []).append(name)
    newest = by_version[max(by_version)]
    since: dict[str, list[str]] = {}
    for name in sorted(set().union(*map(names, by_version.values()))):
        versions = [version for version, library in by_version.items() if not lacks(library, name)]
        if lacks(newest, name):
            since.setdefault("gone", []).append(name)
        elif versions[0] > OLDEST:
            since.setdefault(_text(versions[0]), []).append(name)
    return {
        "operators": {version: " ".join(found) for version, found in new.items()},
        "waiting": " ".join(sorted(waiting)),
        "names": {version: " ".join(since[version]) for version in sorted(since, key=_order)},
    }


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version != "gone" else (99,)


def _waits(name: str, sources: Mapping[str, str], asked: set[str]) -> bool:
    if name in asked:
        return False
    asked.add(name)
    body = sources[name]
    return bool(WAITS.search(body)) or any(
        _waits(called, sources, asked) for called in set(re.findall(r"\b(\w+)\(", body)) & set(sources)
    )


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _git(repository: Path, what: str) -> str:
    return subprocess.run(
        ["git", "-C", repository, "show", what], capture_output=True, encoding="utf-8", check=True
    ).stdout


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(*map(Path, sys.argv[1:])), indent=1) + "\n", encoding="utf-8")
