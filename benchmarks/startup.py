"""How long the command, the runtime's import and the loading of a bundle take.

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

LOAD = "from time import perf_counter as t; from specexport import load; s = t(); load({!r}); print(t() - s)"
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


if __name__ == "__main__":
    main()
