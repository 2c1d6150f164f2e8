"""`scripts/gpu_kit` without a network: cutting, digests, joining, and an installation of wheels made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from gpukit import command as command_module
from gpukit import install as install_module
from gpukit import wheels as wheels_module
from gpukit.install import MANIFEST, Kit, KitError, Part, library_folders, recut, settings
from gpukit.pack import INSTALLER, contents, pack, sends
from gpukit.wheels import CUDA, Host, download, packages
from support.refusals import refused

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SIZES = {"first-1.0-py3-none-any.whl": 10, "second-2.0-py3-none-any.whl": 25, "third-3.0-py3-none-any.whl": 5}


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "made"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, size in SIZES.items():
        (folder / name).write_bytes(random.bytes(size))
    return [folder / name for name in SIZES]


# Cutting and joining.


@pytest.mark.parametrize("sizes", [[1], [7], [40], [13, 13, 14], [10, 25, 5], [39, 1], [1] * 40])
@pytest.mark.parametrize("block", [1, 4, 2**20])
def test_what_is_cut_holds_the_same_bytes(
    tmp_path: Path, wheels: list[Path], sizes: list[int], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_module, "BLOCK", block)
    targets = [(tmp_path / str(number), size) for number, size in enumerate(sizes)]
    recut(wheels, targets)
    assert [path.stat().st_size for path, _ in targets] == sizes
    found = b"".join(path.read_bytes() for path, _ in targets)
    assert found == b"".join(wheel.read_bytes() for wheel in wheels)[: sum(sizes)]


def test_pieces_are_full_but_for_the_last(tmp_path: Path, wheels: list[Path]) -> None:
    kit = pack(wheels, tmp_path / "kit", 16, PYTHON)
    assert [piece.bytes for piece in kit.pieces] == [16, 16, 8]
    assert [wheel.name for wheel in kit.wheels] == list(SIZES)
    assert Kit.read(tmp_path / "kit") == kit
    kit.check(tmp_path / "kit")
    first, second, third = SIZES
    assert [names for _, names in contents(kit)] == [[first, second], [second], [second, third]]
    assert [names for _, names in contents(pack(wheels, tmp_path / "kit", 10, PYTHON))][:2] == [[first], [second]]


def test_packing_again_keeps_what_is_right_and_mends_what_is_not(tmp_path: Path, wheels: list[Path]) -> None:
    folder = tmp_path / "kit"
    kit = pack(wheels, folder, 16, PYTHON)
    paths = [folder / piece.name for piece in kit.pieces]
    before = [path.stat().st_ino for path in paths]
    paths[1].write_bytes(b"x" * 16)
    paths[2].unlink()
    (folder / "piece-09.bin").write_bytes(b"of a larger kit")
    assert pack(wheels, folder, 16, PYTHON) == kit
    kit.check(folder)
    assert paths[0].stat().st_ino == before[0]
    assert {path.name for path in folder.iterdir()} == {*(path.name for path in paths), MANIFEST, INSTALLER}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "piece-02.bin is missing"),
        (lambda path: path.write_bytes(b"short"), "piece-02.bin has 5 bytes instead of 16"),
        (lambda path: path.write_bytes(b"x" * 16), "piece-02.bin is damaged: its SHA-256 differs"),
    ],
)
def test_a_piece_that_is_wrong_is_named(tmp_path: Path, wheels: list[Path], spoil: Any, said: str) -> None:
    folder = tmp_path / "kit"
    kit = pack(wheels, folder, 16, PYTHON)
    spoil(folder / "piece-02.bin")
    with refused(KitError, "piece-02.bin"):
        kit.check(folder)
    result = CliRunner().invoke(command_module.main, ["check", str(folder)])
    assert (result.exit_code, result.output) == (1, f"Error: {said}; send it again\n")


def test_how_often_something_has_to_be_sent() -> None:
    def kit(*sizes: int) -> Kit:
        return Kit(PYTHON, (), tuple(Part(str(size), size, "") for size in sizes))

    assert sends(kit(45, 45, 8), 4, 64) == 2
    assert sends(kit(45, 45, 16), 4, 64) == 3
    assert sends(kit(30, 30, 30), 4, 64) == 2
    assert sends(kit(60), 4, 64) == 1
    with refused(KitError, "--piece-mb"):
        sends(kit(61), 4, 64)


# Installing.


def real_wheel(folder: Path, name: str) -> Path:
    """One module that says where it lies."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "print(__file__)\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    pack([real_wheel(tmp_path, "kit_one"), real_wheel(tmp_path, "kit_two")], tmp_path / "kit", 300, PYTHON)
    return tmp_path / "kit"


def run_install(packed: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """The copy in the kit, without this checkout: as it is run on another host."""
    command = [sys.executable, str(packed / INSTALLER), str(packed), str(target)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_an_installation_is_used_by_the_line_that_it_prints(tmp_path: Path, packed: Path) -> None:
    site = tmp_path / "new/site"
    for _ in range(2):  # again is harmless
        done = run_install(packed, site)
        assert done.returncode == 0, done.stderr
    assert "installed kit_one-1.0, kit_two-1.0" in done.stderr
    (line,) = done.stdout.splitlines()
    used = subprocess.run(
        ["sh", "-c", f'{line}; exec "$1" -c "import kit_one, kit_two"', "sh", sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    assert used.stdout.splitlines() == [str(site / "kit_one.py"), str(site / "kit_two.py")]
    assert sorted(path.name for path in site.parent.iterdir()) == ["site"], "nothing else is left"


def test_nothing_is_installed_from_a_kit_that_is_not_whole(tmp_path: Path, packed: Path) -> None:
    (packed / "piece-01.bin").unlink()
    done = run_install(packed, tmp_path / "site")
    assert done.returncode == 1
    assert done.stderr == "Error: piece-01.bin is missing; send it again\n"
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python": "3.2"}, rf"the wheels are for Python 3\.2, this is {PYTHON}; run: python3\.2 "),
        ({"format": 9}, "has format 9, this is for 1; pack the kit again"),
        ({"pieces": [{"name": "x"}]}, "is damaged; send it again"),
        ({"pieces": 5}, "is damaged; send it again"),
    ],
)
def test_a_manifest_that_does_not_fit(tmp_path: Path, packed: Path, change: dict[str, Any], said: str) -> None:
    path = packed / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(KitError, match=said):
        install_module.install(packed, tmp_path / "site")


def test_a_manifest_that_is_missing_or_no_json(tmp_path: Path) -> None:
    with refused(KitError, "along"):
        Kit.read(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with refused(KitError, "damaged"):
        Kit.read(tmp_path)


def test_cuda_is_found_where_pip_has_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, kit = tmp_path / "own/nvidia", tmp_path / "site/nvidia"
    for folder in (own / "cu13/lib", own / "cudnn/lib", kit / "cu13/lib"):
        folder.mkdir(parents=True)
        (folder / "libsome.so.13").touch()
    (own / "headers/lib").mkdir(parents=True)
    spec = SimpleNamespace(submodule_search_locations=[str(own)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "nvidia" else None)
    found = list(library_folders(tmp_path / "site"))
    assert found == [kit / "cu13/lib", own / "cu13/lib", own / "cudnn/lib"]
    assert f' LD_LIBRARY_PATH="{":".join(map(str, found))}$' in settings(tmp_path / "site")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "LD_LIBRARY_PATH" not in settings(tmp_path / "bare")


# Downloading.


def test_a_host_serves_what_is_older() -> None:
    found = list(Host("3.12", "manylinux_2_28_x86_64").platforms)
    assert found[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} < set(found)
    assert "manylinux_2_29_x86_64" not in found
    assert list(Host("3.12", "win_amd64").platforms) == ["win_amd64"]


def test_cuda_is_packed_where_it_is_asked_for() -> None:
    without = packages(["onnxruntime-cuda"], cuda=False)
    assert not set(CUDA) & set(without)
    assert set(packages(["onnxruntime-cuda"], cuda=True)) == {*without, *CUDA}
    assert without[-1].startswith("onnxruntime-gpu")


@pytest.mark.parametrize(
    "said",
    [
        "Saved ./made/{0}\n",
        "  File was already downloaded /else where/made/{0}\n",
        "  Created wheel for some: filename={0} size=8 sha256=ab\n",
    ],
)
def test_pip_says_what_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return SimpleNamespace(
            returncode=0, stdout="Collecting some\n" + said.format("some-1.0-py3-none-any.whl"), stderr=""
        )

    monkeypatch.setattr(wheels_module.subprocess, "run", run)
    assert download("some", Host("3.12", "manylinux_2_28_x86_64"), tmp_path) == tmp_path / "some-1.0-py3-none-any.whl"
    assert {"--no-deps", "--only-binary=:all:", "--python-version=3.12", "some"} < set(asked[0])


def test_pips_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stderr = "ERROR: Could not find a version\nERROR: No matching distribution found for some\nWARNING: pip is old\n"
    ended = SimpleNamespace(returncode=1, stdout="", stderr=stderr)
    monkeypatch.setattr(wheels_module.subprocess, "run", lambda *_, **__: ended)
    with refused(KitError, "ERROR"):
        download("some", Host("3.12", "manylinux_2_28_x86_64"), tmp_path)


def test_the_command_packs_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(package: str, host: Host, folder: Path) -> Path:
        path = folder / f"{package.partition('>')[0]}-1.0-py3-none-any.whl"
        path.write_bytes(package.encode() * 100_000)
        return path

    monkeypatch.setattr(command_module, "download", fetched)
    monkeypatch.setattr(command_module, "checkout_bytes", lambda: 4 * 10**6)
    arguments = [str(tmp_path / "kit"), "--engine", "onnxruntime-cuda", "--piece-mb", "1"]
    result = CliRunner().invoke(command_module.main, ["pack", *arguments])
    assert result.exit_code == 0, result.output
    assert "6 pieces, 5." in result.output
    assert "with this checkout's 4.0 MB: 1" in result.output
    checked = CliRunner().invoke(command_module.main, ["check", str(tmp_path / "kit")])
    assert checked.exit_code == 0
    assert checked.output.splitlines() == result.output.splitlines()[-len(checked.output.splitlines()) :]
