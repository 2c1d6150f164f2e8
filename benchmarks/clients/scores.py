"""What quantization loses in lm-eval's own numbers: several bundles, scored over HTTP by `try_lm_eval.py`.

    python benchmarks/clients/scores.py fp32.bundle int8.bundle int4.bundle [--limit N]

Prints a table of each task with standard errors. lm-eval gets an environment of its own, as for `run.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from clients import CLIENTS
from environments import make
from results import read
from servers import environment

NAME = "lm-eval"


def measure(bundle: Path, limit: int) -> dict[str, tuple[float, float]]:
    """By task: lm-eval's number and its standard error."""
    client = CLIENTS[NAME]
    command = make(NAME, client)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "scores.json"
        with environment(bundle, Path(folder) / "server.log", client.servers) as variables:
            variables |= {"LIMIT": str(limit), "RESULTS": str(results)}
            done = subprocess.run(
                command, cwd=folder, env=variables, capture_output=True, text=True, encoding="utf-8", check=False
            )
        failed = [one for one in read(done.stdout, done.returncode, done.stderr) if one.outcome != "ok"]
        if failed:
            sys.exit(f"{bundle}: {failed[0].reason}\n{done.stderr[-2000:]}")
        return {
            task: (value, error) for task, (value, error) in json.loads(results.read_text(encoding="utf-8")).items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=0, help="documents of each task; default: all")
    arguments = parser.parse_args()
    for place, bundle in enumerate(arguments.bundles):
        found = measure(bundle, arguments.limit)
        if not place:
            print(f"| bundle | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
        cells = (f"{value:.4f} ± {error:.4f}" for value, error in found.values())
        print(f"| {bundle.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
