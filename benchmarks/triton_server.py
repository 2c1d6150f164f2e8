"""The overhead of Triton over a session: `python benchmarks/triton_server.py demo.bundle`, after `make triton`.

One thread, 200 tokens, four draft tokens per round: a session in this process and both models of a repository,
interleaved; then tokens per second of one and of two instances, and the memory of their processes.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import specexport
from specexport.integrations.triton.repository import RepositoryOptions, write_repository
from start_tritonserver import environment
from support.triton_server import PATIENCE, TritonServer, asked, python_path

PROMPT, TOKENS, TURNS, SECONDS = "def main():\n", 200, 10, 8.0
OPTIONS = {"max_new_tokens": TOKENS, "num_draft_tokens": 4}


def main(bundle: Path) -> None:
    if isinstance(environment(), str):
        raise SystemExit(str(environment()))
    with tempfile.TemporaryDirectory() as folder:
        server = start(bundle, 1, Path(folder) / "one")
        try:
            latencies(bundle, server)
            print(f"one instance, two clients: {rate(server, 2):.0f} tokens/s")
        finally:
            server.end()
        server = start(bundle, 2, Path(folder) / "two")
        try:
            print(f"two instances, two clients: {rate(server, 2):.0f} tokens/s")
            memory(Path(folder) / "two")
        finally:
            server.end()


def start(bundle: Path, instances: int, folder: Path) -> TritonServer:
    folder.mkdir()
    packages = tuple(python_path(folder))
    options = RepositoryOptions(name="demo", instances=instances, threads=1, python_path=packages)
    write_repository(bundle, folder / "models", options)
    begun = time.perf_counter()
    server = TritonServer(folder / "models", folder)
    server.wait_until_ready()
    print(f"{instances} instances are ready in {time.perf_counter() - begun:.1f} s")
    return server


def latencies(bundle: Path, server: TritonServer) -> None:
    with specexport.load(bundle, threads=1) as session:

        def in_process() -> float:
            begun = time.perf_counter()
            stream = session.stream(PROMPT, **OPTIONS)
            next(stream)
            first = time.perf_counter() - begun
            list(stream)
            return first

        ways: dict[str, Callable[[], float]] = {
            "in process": in_process,
            "streamed": lambda: first_of_stream(server),
            "whole": lambda: float(server.whole("demo_whole", PROMPT, **OPTIONS)[0] != 200),
        }
        firsts: dict[str, list[float]] = {name: [] for name in ways}
        totals: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(2 + TURNS):  # two to warm up
            for name, way in ways.items():
                begun = time.perf_counter()
                first = way()
                if turn >= 2:
                    firsts[name].append(first)
                    totals[name].append(time.perf_counter() - begun)
    for name in ways:
        first, total = (1e3 * statistics.median(times[name]) for times in (firsts, totals))
        print(f"{name:<12} first round {first:6.1f} ms, answer {total:6.1f} ms")


def first_of_stream(server: TritonServer) -> float:
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", "/v2/models/demo/generate_stream", json.dumps(asked(PROMPT, **OPTIONS)))
    answer = connection.getresponse()
    answer.read1(10)
    first = time.perf_counter() - begun
    answer.read()
    connection.close()
    return first


def rate(server: TritonServer, clients: int) -> float:
    answers: list[int] = []
    begun = time.perf_counter()

    def ask() -> None:
        while time.perf_counter() - begun < SECONDS:
            first_of_stream(server)
            answers.append(TOKENS)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answers) / (time.perf_counter() - begun)


def memory(folder: Path) -> None:
    """Print the memory of the processes that have the folder in their command line."""
    for process in Path("/proc").glob("[0-9]*"):
        command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if any(str(folder) in part for part in command) and "triton" in command[0]:
            lines = (process / "smaps_rollup").read_text(encoding="utf-8").splitlines()
            size = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            ran = " ".join(Path(part).name if part == command[0] else part for part in command[:2])
            print(f"{size / 1e3:6.1f} MB  {ran.replace(f'{folder}/models/', '')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
