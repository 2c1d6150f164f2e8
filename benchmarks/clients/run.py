"""Clients that were written elsewhere, each with its own script of checks, against `specexport serve`.

    python benchmarks/clients/run.py chat.bundle [--only openai,litellm] [--json FILE]

BUNDLE must have a chat template. Each client has an environment of its own in SPECEXPORT_CLIENTS, by default
specexport-clients in the user's cache, which is made when it is first needed (4 GB in all). The checks are about the
protocol: nothing depends on what a model knows. `refused` means that the server answered with a status of 4xx. The
table goes to stdout. The exit code is 0 only if every check works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from clients import CLIENTS
from environments import SetupError, make
from results import Result, read, table
from servers import environment


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--only", default=",".join(CLIENTS), help="comma-separated; default: %(default)s")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one client; default: %(default)s")
    parser.add_argument("--json", type=Path, help="write all results here too")
    parser.add_argument("--logs", type=Path, help="folder for what servers and clients print; default: a temporary one")
    arguments = parser.parse_args()
    if not arguments.bundle.is_dir():
        parser.error(f"there is no folder {arguments.bundle}; give a bundle, such as that of `make chat`")
    arguments.only = arguments.only.split(",")
    for name in arguments.only:
        if name not in CLIENTS:
            parser.error(f"--only names {name!r}; there are {', '.join(CLIENTS)}")
    return arguments


def attempt(name: str, command: list[str], arguments: argparse.Namespace, logs: Path) -> list[Result]:
    """Run one client's script, with its servers."""
    output, errors = logs / f"{name}.out", logs / f"{name}.err"
    with (
        environment(arguments.bundle, logs / f"{name}.server", CLIENTS[name].servers) as variables,
        tempfile.TemporaryDirectory() as staging_dir,
        output.open("wb") as out,
        errors.open("wb") as err,
    ):
        try:
            done = subprocess.run(
                command, cwd=staging_dir, env=variables, stdout=out, stderr=err, timeout=arguments.timeout, check=False
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    return read(
        output.read_text(errors="replace", encoding="utf-8"), code, errors.read_text(errors="replace", encoding="utf-8")
    )


def main() -> None:
    arguments = parse()
    results: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        logs = arguments.logs or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        try:
            for name in arguments.only:
                client = CLIENTS[name]
                found = attempt(name, make(name, client), arguments, logs)
                results[f"{name} {client.version}"] = found
                for one in found:
                    print(f"{name}: {one.check}: {one.outcome} {one.reason}".rstrip(), file=sys.stderr, flush=True)
        except (SetupError, RuntimeError) as error:
            sys.exit(str(error))
    print(table(results))
    if arguments.json:
        kept = {client: [asdict(one) for one in found] for client, found in results.items()}
        arguments.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(one.outcome != "ok" for found in results.values() for one in found))


if __name__ == "__main__":
    main()
