"""Builds the wheels of specexport-kernels for x86-64 and arm64 on either of them, and checks them.

python kernels/wheels.py FOLDER

`make wheels` calls this in an environment with the compiler, CMake and Ninja from PyPI. The wheel of this processor is
installed and tested; the objects of both print their digests, those of the other processor under QEMU.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile

KERNELS = Path(__file__).resolve().parent
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
NEWEST_GLIBC = (2, 28)  # of manylinux_2_28: Debian 10, Ubuntu 18.10, RHEL 8, JetPack 5, and all that are newer
EXPORTED = {"RegisterCustomOps", "specexport_kernels_set"}
ZIG = f"{sys.executable} -m ziglang c++ -target"


def run(*command: str | Path, **variables: str) -> None:
    words = [str(part) for part in command]
    if subprocess.run(words, env=os.environ | variables, check=False).returncode:
        sys.exit(f"failed: {' '.join(words)}")


def build(machine: str, folder: Path, work: Path) -> Path:
    """The wheel for `machine`. `work` keeps what was compiled."""
    glibc = ".".join(map(str, NEWEST_GLIBC))
    tag = f"manylinux_{glibc.replace('.', '_')}_{machine}"
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--no-build-isolation", "-C", f"build-dir={work}", "--wheel-dir", folder, KERNELS),
        CXX=f"{ZIG} {machine}-linux-gnu.{glibc}",
        LDFLAGS="-s",  # else only hosts with `strip` make small ones
        CMAKE_ARGS=f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={machine}",
        _PYTHON_HOST_PLATFORM=tag,  # where scikit-build-core reads the wheel's tag
    )
    (wheel,) = folder.glob(f"specexport_kernels-*-py3-none-{tag}.whl")
    return wheel


def check(wheel: Path, machine: str) -> None:
    """Ends the program if the library is of another processor, needs more than the wheel's tag says, or lacks what ONNX
    Runtime and Python call.
    """
    elf = ELFFile(io.BytesIO(ZipFile(wheel).read("specexport_kernels/specexport_kernels.so")))
    needed = {
        version.name
        for _, versions in elf.get_section_by_name(".gnu.version_r").iter_versions()
        for version in versions
    }
    newer = {name for name in needed if not name.startswith("GLIBC_") or version_of(name) > NEWEST_GLIBC}
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    missing = EXPORTED - {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    if elf["e_machine"] != MACHINES[machine] or newer or missing:
        sys.exit(f"{wheel.name} is for {elf['e_machine']}, needs {sorted(newer)}, lacks {sorted(missing)}")
    print(
        f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, glibc {max(map(version_of, needed))} or newer", flush=True
    )


def version_of(name: str) -> tuple[int, ...]:
    """`GLIBC_2.2.5` -> (2, 2, 5)."""
    return tuple(map(int, name.removeprefix("GLIBC_").split(".")))


def digests(machine: str, work: Path) -> str | None:
    """The command that runs `digests` with the objects of that machine's wheel; None where this host cannot run it."""
    emulator = "" if machine == platform.machine() else shutil.which(f"qemu-{machine}")
    if emulator is None:
        print(
            f"qemu-{machine} is not installed (Debian: qemu-user): the kernels for {machine} were NOT run", flush=True
        )
        return None
    program = work / "digests"
    sources = (KERNELS / "tests" / "digests.cpp", KERNELS / "src" / "choose.cpp")
    objects = sorted(work.glob("CMakeFiles/kernels_*.dir/src/kernels.cpp.o"))
    options = (f"{machine}-linux-musl", "-static", "-std=c++17", "-O2")  # static: QEMU then needs no libraries
    run(*ZIG.split(), *options, *sources, *objects, "-o", program)
    return f"{emulator} {program}".strip()


def test(wheel: Path) -> None:
    """The tests of the package, in an environment that has the wheel and what its tests need."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        python = Path(folder) / "bin" / "python"
        constraints = ("--constraint", KERNELS.parent / "constraints.txt")
        tools = ("pytest", "numpy", "ml_dtypes", "onnx", "onnxruntime")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, wheel, *tools)
        options = ("-p", "no:cacheprovider", "-o", "addopts=", f"--confcutdir={KERNELS}", "-q")
        run(python, "-m", "pytest", *options, KERNELS / "tests", PYTHONPATH="")


def main(folder: Path) -> None:
    work = KERNELS.parent / "build" / "wheels"
    for older in folder.glob("specexport_kernels-*.whl"):
        older.unlink()
    commands = []
    for machine in MACHINES:
        wheel = build(machine, folder, work / machine)
        check(wheel, machine)
        if machine == platform.machine():
            test(wheel)
        if command := digests(machine, work / machine):
            commands.append(command)
    run(sys.executable, KERNELS / "tests" / "compare_digests.py", *commands)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
