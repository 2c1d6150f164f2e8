"""`scripts/gpu_kit` without a network: cutting, digests, joining, and an installation of wheels made here."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpukit import command as command_module
from gpukit.pack import INSTALLER, pack
from gpukit.wheels import Host

pytestmark = pytest.mark.slow
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


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

    arguments[2] = "tensorrt"
    lacking = CliRunner().invoke(command_module.main, ["pack", *arguments])
    assert lacking.exit_code == 1
    assert "tensorrt_cu13_libs-*.whl" in lacking.output.splitlines()[-1]
    (tmp_path / "kit/wheels/tensorrt_cu13_libs-11.4.0-py3-none-any.whl").write_bytes(bytes(10**6))
    brought = CliRunner().invoke(command_module.main, ["pack", *arguments])
    assert brought.exit_code == 0, brought.output
    assert "tensorrt_cu13==11.4.0" in brought.output.replace("-cu13", "_cu13")
    assert "tensorrt_cu13_libs-11.4.0" in brought.output

    result = CliRunner().invoke(command_module.main, ["pack", *arguments[:2], "onnxruntime-cuda", *arguments[3:]])
    checked = CliRunner().invoke(command_module.main, ["check", str(tmp_path / "kit")])
    assert checked.exit_code == 0
    assert checked.output.splitlines() == result.output.splitlines()[-len(checked.output.splitlines()) :]
