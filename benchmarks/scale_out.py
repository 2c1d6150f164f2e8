"""Two replicas on two cores, one thread each, against one replica: through Ray Serve and called directly.

    python benchmarks/scale_out.py demo.bundle            # needs specexport[ray], and two idle cores
    python benchmarks/scale_out.py demo.bundle --most     # only the maximum of the machine, without Ray

Every comparison is interleaved, so that both sides have the same noise. Two replicas are compared with one before Ray
is started, since its processes use the cores even when they are idle. Prints the throughput of two sessions without any
server, which is the maximum for two cores; tokens per second with whole answers and with streams; the time to the first
byte of a stream; the share of turns that found their cache rows; how soon a session continues after its replica was
killed; and the memory, and the processor time when idle, of Ray's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MS = 1e3
PATH = "/v1/completions"
OWN = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_SERVE_LOG_TO_STDERR": "0"}
SESSION = """
import sys, time, specexport
session, end, count = specexport.load(sys.argv[1], threads=1), time.perf_counter() + 4, 0
start = time.perf_counter()
while time.perf_counter() < end:
    count += len(session.generate("a", max_new_tokens=200, temperature=0, stop_token_ids=()).tokens)
print(count / (time.perf_counter() - start))
"""


class Place:
    """A port, and a session id, which selects one replica behind it."""

    def __init__(self, port: int, session: str = "") -> None:
        self.port, self.session = port, session

    def ask(self, **fields: Any) -> tuple[float, list[float], bytes, str]:
        """(seconds, seconds to each piece, body, replica)."""
        body = json.dumps({"temperature": 0, "stop_token_ids": [], **fields})
        headers = {"Content-Type": "application/json", "x-session-id": self.session}
        start, pieces, parts = time.perf_counter(), [], []
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", PATH, body, headers)
        answer = connection.getresponse()
        while part := answer.read1(65536):
            pieces.append(time.perf_counter() - start)
            parts.append(part)
        connection.close()
        assert answer.status == 200, parts
        return time.perf_counter() - start, pieces, b"".join(parts), answer.headers.get("x-specexport-replica", "")


@contextlib.contextmanager
def processes(bundle: Path, count: int) -> Iterator[list[int]]:
    """Run `count` servers; the value is their ports."""
    started, ports = [], []
    try:
        for _ in range(count):
            command = [sys.executable, "-m", "specexport", "serve", str(bundle), "--port", "0", "--threads", "1"]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
            )
            started.append(process)
        for process in started:
            assert process.stdout is not None
            ports.append(json.loads(process.stdout.readline())["port"])
        yield ports
    finally:
        for process in started:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextlib.contextmanager
def ray_serve(bundle: Path, replicas: int) -> Iterator[int]:
    """Run an application with `replicas` replicas; the value is its port."""
    os.environ.update(OWN)
    import ray
    from ray import serve
    from specexport.integrations.ray import build

    port, start = free_port(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="raybench", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=replicas,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _temp_dir=folder,
            log_to_driver=False,
        )
        begun = time.perf_counter() - start
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build({"bundles": str(bundle), "replicas": replicas}), name="specexport", route_prefix="/")
        ready = time.perf_counter() - start
        print(f"Ray {ray.__version__}: begun after {begun:.1f} s, replicas ready after {ready:.1f} s")
        try:
            yield port
        finally:
            serve.shutdown()
            ray.shutdown()


def running() -> dict[str, int]:
    """The running replicas and their process ids, as in Ray's dashboard."""
    from ray.serve.context import _get_global_client

    deployments = _get_global_client().get_serve_details()["applications"]["specexport"]["deployments"]
    replicas = deployments["specexport"]["replicas"]
    return {replica["replica_id"]: replica["pid"] for replica in replicas if replica["state"] == "RUNNING"}


def one_session_each(port: int, replicas: int) -> list[Place]:
    found: dict[str, Place] = {}
    for number in range(1000):
        place = Place(port, f"session-{number}")
        found.setdefault(place.ask(prompt="a", max_tokens=1)[3], place)
        if len(found) == replicas:
            break
    return list(found.values())


def tokens_per_second(places: list[Place], prompts: list[list[int]], count: int, stream: bool) -> float:
    """Throughput if every place gets all prompts, one after the other, all places at the same time."""
    taken: list[float] = []

    def work(place: Place) -> None:
        for prompt in prompts:
            place.ask(prompt=prompt, max_tokens=count, stream=stream)
        taken.append(time.perf_counter() - start)

    threads = [threading.Thread(target=work, args=(place,)) for place in places]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(count * len(prompts) / seconds for seconds in taken)


def interval(values: list[float]) -> str:
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return f"{statistics.median(values):.3f} (95 % {medians[50]:.3f} to {medians[-50]:.3f}, {len(values)} trials)"


def most(bundle: Path, trials: int) -> None:
    """Sessions in separate processes, without a server: the throughput of two of them relative to one."""
    found = []
    for _ in range(trials):
        speeds = []
        for count in (1, 2):
            command = [sys.executable, "-c", SESSION, str(bundle)]
            running = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") for _ in range(count)
            ]
            speeds.append(sum(float(process.communicate()[0]) for process in running))
        found.append(speeds[1] / speeds[0])
    print(f"without servers, two over one: {interval(found)}")


def throughput(name: str, ways: tuple[list[Place], list[Place]], trials: int, count: int) -> None:
    """Print the throughput of the second way relative to the first."""
    chance = random.Random(1)
    for shape, stream in (("whole answers", False), ("streams", True)):
        speeds: list[list[float]] = [[], []]
        for trial in range(trials + 1):
            prompts = [[chance.randrange(300, 600) for _ in range(16)] for _ in range(2)]
            for way in (0, 1) if trial % 2 else (1, 0):
                speed = tokens_per_second(ways[way], prompts, count, stream)
                if trial:  # warm
                    speeds[way].append(speed)
        first, second = map(statistics.median, speeds)
        ratios = [later / before for before, later in zip(*speeds, strict=True)]
        print(f"{name}, {shape}: {interval(ratios)}; {first:.0f} and {second:.0f} tokens/s")


def first_byte(direct: list[Place], through_ray: list[Place], trials: int) -> None:
    chance = random.Random(2)
    later, rounds = [], []
    for trial in range(trials + 3):
        prompt = [chance.randrange(300, 600) for _ in range(16)]
        found = {}
        for way in (0, 1) if trial % 2 else (1, 0):
            place = (direct, through_ray)[way][trial // 2 % 2]
            _, pieces, body, _ = place.ask(prompt=prompt, max_tokens=64, stream=True)
            found[way] = pieces[0], (pieces[-1] - pieces[0]) / body.count(b"data: {")
        if trial >= 3:
            later.append(MS * (found[1][0] - found[0][0]))
            rounds.append(MS * (found[1][1] - found[0][1]))
    print(f"first byte through Ray, ms later: {interval(later)}")
    print(f"an event of a stream through Ray, ms later: {interval(rounds)}")


def turns(port: int, sessions: int, count: int) -> None:
    """Alternate between as many conversations as the replicas can keep. A turn has found its rows if those of the
    previous prompt were reused, except for two at its end, which the first letters of the answer may have changed.
    """
    before: dict[str, int] = {}
    texts = {f"turn-{number}": f"Conversation {number}:" for number in range(sessions)}
    hits = asked = 0
    for turn in range(count):
        for session, text in texts.items():
            body = json.loads(Place(port, session).ask(prompt=text, max_tokens=12)[2])
            texts[session] = text + body["choices"][0]["text"] + " And"
            usage = body["usage"]
            if turn:
                asked += 1
                hits += usage["prompt_tokens_details"]["cached_tokens"] >= before[session] - 2
            before[session] = usage["prompt_tokens"]
    print(f"turns that found their rows: {hits} of {asked}")


def killed(port: int, replicas: int) -> None:
    """Kill a replica in the middle of a stream (kill -9): the time to the next answer of its session, and until it is
    replaced.
    """
    place, *_ = one_session_each(port, replicas)
    replica = place.ask(prompt="a", max_tokens=1)[3]
    ends: list[str] = []

    def stream() -> None:
        try:
            body = place.ask(prompt="a", max_tokens=1000, stream=True)[2]
            ends.append("whole" if body.endswith(b"[DONE]\n\n") else "without [DONE]")
        except (http.client.HTTPException, OSError) as error:
            ends.append(type(error).__name__)

    thread = threading.Thread(target=stream)
    thread.start()
    time.sleep(0.3)
    start = time.perf_counter()
    os.kill(running()[replica], signal.SIGKILL)
    failed = 0
    while True:
        try:
            place.ask(prompt="a", max_tokens=1)
            break
        except (AssertionError, http.client.HTTPException, OSError):
            failed += 1
    answered = time.perf_counter() - start
    thread.join()
    while len(running()) < replicas or replica in running():
        time.sleep(0.05)
    print(f"killed in mid-stream: the stream ended with {ends[0]}, the session went on after {answered:.2f} s")
    print(f"({failed} requests failed before), and the replica was replaced after {time.perf_counter() - start:.1f} s")


def below(pid: int) -> Iterator[int]:
    """All descendants of the process, without `specexport serve`."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split():
        if b"specexport\0serve" not in Path(f"/proc/{child}/cmdline").read_bytes():
            yield int(child)
            yield from below(int(child))


def memory_and_idle(pid: int) -> None:
    replicas = list(running().values())
    others = [other for other in below(pid) if other not in replicas]
    before, start = sum(map(cpu_seconds, [*replicas, *others])), time.perf_counter()
    time.sleep(5)
    share = (sum(map(cpu_seconds, [*replicas, *others])) - before) / (time.perf_counter() - start)
    sizes = [sum(map(own_memory, pids)) / (1 << 20) for pids in (replicas, others)]
    print(f"Ray idle: {share:.3f} cores; replicas {sizes[0]:.0f} MiB, {len(others)} other processes {sizes[1]:.0f} MiB")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_memory(pid: int) -> int:
    """Memory of the process in bytes, with shared pages counted proportionally."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--requests", type=int, default=40, help="requests to measure the first byte with")
    parser.add_argument("--most", action="store_true", help="only two sessions without any server; needs no Ray")
    arguments = parser.parse_args()
    bundle = arguments.bundle.resolve()
    trials, tokens = arguments.trials, arguments.tokens
    most(bundle, max(trials // 4, 1))
    if arguments.most:
        return
    with processes(bundle, 2) as ports:
        direct = [Place(own) for own in ports]
        throughput("two over one", (direct[:1], direct), trials, tokens)
        with ray_serve(bundle, 2) as port:
            through_ray = one_session_each(port, 2)
            throughput("Ray over the same called directly", (direct, through_ray), trials, tokens)
            first_byte(direct, through_ray, arguments.requests)
            turns(port, 6, 10)
            memory_and_idle(os.getpid())
            killed(port, 2)


if __name__ == "__main__":
    main()
