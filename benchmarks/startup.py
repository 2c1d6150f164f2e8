"""How long the command, the runtime's import and the loading of a bundle take, and the memory of a bundle in use.

    python benchmarks/startup.py demo.bundle

Each in new processes, one after the other; prints the median and the worst of several.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from hardware import describe_hardware
from specexport.bundle import Bundle

LOAD = "from time import perf_counter as t; from specexport import load; s = t(); load({!r}); print(t() - s)"
# Resident memory that a bundle brings, in kB, after a prompt and a few tokens.
MEMORY = """
from pathlib import Path
import onnxruntime, specexport, specexport.runtime.load
def resident():
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line).split()[1])
before = resident()
with specexport.load({!r}, policy=False) as session:
    session.generate(list(range(3, 40)), max_new_tokens=8, stop_token_ids=())
    print(resident() - before)
"""
IMPORT = "from time import perf_counter as t; s = t(); from specexport import load; print(t() - s)"


def whole(command: list[str]) -> float:
    start = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - start


def inner(code: str) -> float:
    return float(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, encoding="utf-8"
        ).stdout
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    command = str(Path(sys.executable).with_name("specexport"))
    load = LOAD.format(str(arguments.bundle))
    measures = [
        ("specexport --help", 0.3, lambda: whole([command, "--help"])),
        ("from specexport import load", 0.3, lambda: inner(IMPORT)),
        ("specexport.load", 0.5, lambda: inner(load)),
    ]
    print(describe_hardware() + "\n\n| | median, s | worst, s | limit, s |\n|---|---|---|---|")
    for name, limit, run in measures:
        times = [run() for _ in range(arguments.repeats)]
        print(f"| {name} | {median(times):.2f} | {max(times):.2f} | {limit} |")
    manifest = Bundle.open(arguments.bundle).manifest
    weights = sum(manifest.files[model.weights].bytes for model in manifest.pair.values()) / 1e6
    caches = sum(model.cache_bytes(manifest.contract) for model in manifest.pair.values()) / 1e6
    used = inner(MEMORY.format(str(arguments.bundle))) * 1024 / 1e6
    print(f"\nmemory {used:.0f} MB: {used / weights:.2f} times the {weights:.0f} MB of weights; caches {caches:.0f} MB")


if __name__ == "__main__":
    main()
