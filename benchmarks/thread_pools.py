"""ONNX Runtime's thread pools for the two models of a bundle: one per process, or one per session, interleaved.

    python benchmarks/thread_pools.py demo.bundle [int8.bundle ...] [--requests 8] [--max-new-tokens 64] [--turns 3]

global   one pool for every session of the process (it changes ONNX Runtime for the host application)
session  one pool per session, which spins by ONNX Runtime's default
stop     one pool per session, whose threads stop spinning when a run ends: what the engine does
quiet    one pool per session, which never spins

Each kind of pool runs in its own process, since the first one applies to a whole process. Requests go to all of them,
interleaved; an idle process waits for its input. Ratios are to `global`, request by request: median, and the 10 % and
90 % ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from specexport.engines.cpus import physical_cores

PROMPTS = Path(__file__).parent.parent / "examples/prompts"
POOLS = ("global", "session", "stop", "quiet")
MODES = ("plain", "speculative")


def configure(pool: str, options: Any, threads: int) -> None:
    """Replaces the engine's own `configure`, for the other pools."""
    if pool == "global":
        options.use_per_session_threads = False
        return
    options.intra_op_num_threads = threads or physical_cores()
    if pool == "quiet":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def serve(bundle: str, pool: str) -> None:
    """Answer requests on stdin, one JSON line each: `{"prompt", "max_new_tokens", "speculate"}` to ms per token."""
    import onnxruntime as ort
    import specexport
    from specexport.engines.onnxruntime import graphs

    if pool == "global":
        ort.set_global_thread_pool_sizes(0, 1)
    if pool != "stop":
        graphs.configure = partial(configure, pool)  # type: ignore[assignment]
    session = specexport.load(bundle, check_digests=False, policy=False)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        session.reset()
        statistics = session.generate(**asked, stop_token_ids=()).statistics
        seconds = statistics.total_seconds - statistics.first_token_seconds
        print(json.dumps(1e3 * seconds / (asked["max_new_tokens"] - 1)), flush=True)


class Process:
    def __init__(self, bundle: str, pool: str) -> None:
        command = [sys.executable, __file__, bundle, "--serve", pool]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"{bundle} with the pool {pool} did not start")

    def ask(self, **request: Any) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def measure(bundle: str, prompts: list[str], max_new_tokens: int, turns: int) -> dict[tuple[str, str], list[float]]:
    processes = {pool: Process(bundle, pool) for pool in POOLS}
    times: dict[tuple[str, str], list[float]] = {(pool, mode): [] for pool in POOLS for mode in MODES}
    for process in processes.values():  # warm up
        process.ask(prompt=prompts[0], max_new_tokens=max_new_tokens)
    for turn in range(turns):
        for number, prompt in enumerate(prompts):
            first = (turn + number) % len(POOLS)
            order = POOLS[first:] + POOLS[:first]
            for mode in MODES:
                for pool in order:
                    asked = dict(prompt=prompt, max_new_tokens=max_new_tokens, speculate=mode == "speculative")
                    times[pool, mode].append(processes[pool].ask(**asked))
    for process in processes.values():
        process.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundles", nargs="+")
    parser.add_argument("--serve", choices=POOLS, help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.bundles[0], arguments.serve)
    lines = [
        line
        for route in ("code", "prose")
        for line in (PROMPTS / f"{route}.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    ]
    prompts = [json.loads(line)["prompt"] for line in lines[:: max(1, len(lines) // arguments.requests)]]
    print("| bundle | mode | pool | ms a token | to `global` (p10 to p90) |\n|---|---|---|---|---|")
    for bundle in arguments.bundles:
        times = measure(bundle, prompts[: arguments.requests], arguments.max_new_tokens, arguments.turns)
        for mode in MODES:
            for pool in POOLS:
                pairs = zip(times[pool, mode], times["global", mode], strict=True)
                ratios = sorted(ours / theirs for ours, theirs in pairs)
                tenth = len(ratios) // 10
                spread = f"{median(ratios):.3f} ({ratios[tenth]:.3f} to {ratios[-1 - tenth]:.3f})"
                print(
                    f"| {Path(bundle).name} | {mode} | {pool} | {median(times[pool, mode]):.3f} | {spread} |",
                    flush=True,
                )
    return None


if __name__ == "__main__":
    main()
