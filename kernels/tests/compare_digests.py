"""Runs the program `digests` with every instruction set that this host has, and compares what they print.

python kernels/tests/compare_digests.py build/kernels/digests ["qemu-aarch64 build/of-arm64/digests" ...]
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

SETS = ("portable", "avx2", "avx_vnni", "avx512", "avx512_vnni", "neon", "neon_dot")


def main(*commands: str) -> None:
    printed: dict[str, str] = {}
    for command in commands:
        before = len(printed)
        for name in SETS:
            done = subprocess.run(
                shlex.split(command),
                env=os.environ | {"SPECEXPORT_KERNELS": name},
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            if done.returncode == 0:
                printed[f"{name} of {command}"] = done.stdout
            elif "SPECEXPORT_KERNELS names" not in done.stderr:  # a set that this host lacks
                sys.exit(f"{name} of {command} ended with {done.returncode}: {done.stderr[-2000:]}")
        if len(printed) < before + 2:  # as when the choice of a set does not know the processor
            sys.exit(f"{command} runs the portable kernels alone, which proves nothing")
    first = next(iter(printed))  # the portable kernels
    lines = printed[first].splitlines()
    for name, text in printed.items():
        wrong = [line for line, other in zip(lines, text.splitlines(), strict=True) if line != other]
        if wrong:
            sys.exit(f"{name} gives other bits than {first} in {len(wrong)} of {len(lines)} results: {wrong[0]}")
    print(f"{', '.join(name.split()[0] for name in printed)}: the same bits in {len(lines)} results")


if __name__ == "__main__":
    main(*sys.argv[1:])
