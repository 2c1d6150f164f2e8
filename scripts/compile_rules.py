"""Compiles engines/cuda/rules.cu to rules.ptx.xz, which every driver from CUDA 12.0 on reads. No GPU is needed.

pip install nvidia-cuda-nvrtc-cu12==12.0.140
python scripts/compile_rules.py
"""

from __future__ import annotations

import ctypes
import hashlib
import lzma
import sys
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "engines/cuda/rules.cu"
OUTPUT = SOURCE.with_suffix(".ptx.xz")
# No multiplication is fused with an addition, so that numbers are those of the CPU's compiler, which tests use.
OPTIONS = (b"--gpu-architecture=compute_70", b"--fmad=false")


def main() -> None:
    package = find_spec("nvidia.cuda_nvrtc") if find_spec("nvidia") else None
    if package is None or package.submodule_search_locations is None:
        sys.exit("Error: NVRTC is not installed; pip install nvidia-cuda-nvrtc-cu12==12.0.140")
    library = ctypes.CDLL(str(next(Path(package.submodule_search_locations[0]).glob("lib/libnvrtc.so*"))))
    source, program, size = SOURCE.read_bytes(), ctypes.c_void_p(), ctypes.c_size_t()

    def text(name: str) -> bytes:
        getattr(library, f"nvrtcGet{name}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{name}")(program, buffer)
        return buffer.value

    library.nvrtcCreateProgram(ctypes.byref(program), source, SOURCE.name.encode(), 0, None, None)
    if library.nvrtcCompileProgram(program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)):
        sys.exit(f"Error: {text('ProgramLog').decode()}")
    header = f"// Of rules.cu, SHA-256 {hashlib.sha256(source).hexdigest()}\n".encode()
    OUTPUT.write_bytes(lzma.compress(header + text("PTX"), preset=9))


if __name__ == "__main__":
    main()
