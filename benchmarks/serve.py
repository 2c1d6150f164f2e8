"""The overhead of HTTP: `specexport serve` against a session in this process, interleaved request by request.

    python benchmarks/serve.py demo.bundle

Each prompt runs once in process and once over a socket, in alternating order, so that both have the same noise. No
prompt begins like the previous one, so nothing is reused. Prints medians of the differences with 95 % intervals by
resampling, how long a start takes, how soon a busy server refuses requests and answers health checks, and how long one
client's large requests delay another client before the queue.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import specexport

MS = 1e3
PATH = "/v1/completions"


class Server:
    """`specexport serve` in its own process."""

    def __init__(self, bundle: Path, *options: str, cache: str | None = None) -> None:
        """cache: the folder where it keeps measured costs, by default the user's cache."""
        start = time.perf_counter()
        command = [sys.executable, "-m", "specexport", "serve", str(bundle), "--port", "0", *options]
        env = os.environ | ({} if cache is None else {"XDG_CACHE_HOME": cache})
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, encoding="utf-8"
        )
        assert self.process.stdout is not None
        self.port = json.loads(self.process.stdout.readline())["port"]
        self.ready_seconds = time.perf_counter() - start

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    @contextmanager
    def request(self, method: str, path: str, key: str = "", **fields: Any) -> Any:
        body = json.dumps(fields).encode() if fields else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"x-api-key: {key}\r\n" if key else ""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            yield connection

    def seconds(self, method: str, path: str, **fields: Any) -> float:
        start = time.perf_counter()
        with self.request(method, path, **fields) as connection:
            while connection.recv(65536):
                pass
        return time.perf_counter() - start

    def capacity(self, key: str) -> int:
        with self.request("GET", "/v1/models", key) as connection:
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return int(json.loads(answer.partition(b"\r\n\r\n")[2])["data"][0]["max_model_len"])


def over_http(server: Server, ids: list[int], count: int) -> tuple[float, float]:
    """(seconds to the first event, seconds per round after it)."""
    asked = dict(prompt=ids, max_tokens=count, temperature=0, stream=True, stop_token_ids=[])
    times, rest = [], b""
    start = time.perf_counter()
    with server.request("POST", PATH, **asked) as connection:
        while part := connection.recv(65536):
            rest += part
            now = time.perf_counter()
            events = rest.split(b"\n\n")
            rest = events.pop()
            times += [now - start for event in events if b'"finish_reason":null' in event]
    return times[0], (times[-1] - times[0]) / (len(times) - 1)


def in_process(session: specexport.Session, ids: list[int], count: int) -> tuple[float, float]:
    start, times = time.perf_counter(), []
    with session.stream(ids, max_new_tokens=count, stop_token_ids=()) as stream:
        for chunk in stream:
            if chunk.text:  # a chunk without text is not sent
                times.append(time.perf_counter() - start)
    return times[0], (times[-1] - times[0]) / (len(times) - 1)


def interval(values: list[float]) -> str:
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return f"{statistics.median(values):.3f} ms (95 % {medians[50]:.3f} to {medians[-50]:.3f})"


def overhead(session: specexport.Session, server: Server, requests: int, length: int, count: int) -> None:
    """Print the overhead. length: tokens of a prompt, whose noise is included in the first byte's. count: tokens of an
    answer.
    """
    chance = random.Random(1)
    size = session.bundle.manifest.target.vocab_size
    first, round_ = [], []
    for place in range(requests + 3):
        ids = [chance.randrange(size // 2, size) for _ in range(length)]
        ways: list[Callable[[], tuple[float, float]]] = [
            lambda ids=ids: in_process(session, ids, count),  # type: ignore[misc]
            lambda ids=ids: over_http(server, ids, count),  # type: ignore[misc]
        ]
        order = [0, 1] if place % 2 else [1, 0]
        found = {way: ways[way]() for way in order}
        if place >= 3:  # warm
            first.append(MS * (found[1][0] - found[0][0]))
            round_.append(MS * (found[1][1] - found[0][1]))
    print(f"first byte over the session's own: {interval(first)}, {requests} requests")
    print(f"a round over the session's own:    {interval(round_)}")


def while_busy(server: Server) -> None:
    """How soon the server answers other clients while the engine prefills and decodes."""
    asked = dict(prompt=[5] * 900, max_tokens=100, temperature=0, stop_token_ids=[])
    refused, health, metrics = [], [], []
    for _ in range(5):
        busy = [threading.Thread(target=server.seconds, args=("POST", PATH), kwargs=asked) for _ in range(2)]
        for thread in busy:
            thread.start()
            time.sleep(0.02)
        refused.append(MS * server.seconds("POST", PATH, prompt="a"))
        health.append(MS * server.seconds("GET", "/health"))
        metrics.append(MS * server.seconds("GET", "/metrics"))
        for thread in busy:
            thread.join()
    for name, values in (("refused", refused), ("/health", health), ("/metrics", metrics)):
        print(f"while the engine is busy, {name}: at most {max(values):.1f} ms of {len(values)}")


def held_up(bundle: Path) -> None:
    """One client repeatedly sends 32 requests of 900 kB at once, while another one tokenizes ten tokens."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys", encoding="utf-8") as keys:
        keys.write("one\ntwo\n")
        keys.flush()
        with Server(bundle, "--api-key-file", keys.name) as server:
            texts = {
                "that cannot fit": "word " * 180_000,
                "that fit": "word " * (server.capacity("two") // 2),
            }
            for told, text in texts.items():
                asked = dict(messages=[{"role": "user", "content": text}], max_tokens=1, key="one")
                others: list[float] = []
                large = [
                    threading.Thread(target=server.seconds, args=("POST", "/v1/chat/completions"), kwargs=asked)
                    for _ in range(32)
                ]
                for thread in large:
                    thread.start()
                while any(thread.is_alive() for thread in large) and len(others) < 50:
                    others.append(MS * server.seconds("POST", "/tokenize", prompt="What is it?", key="two"))
                for thread in large:
                    thread.join()
                print(f"beside 32 requests {told}, /tokenize of another key: at most {max(others):.0f} ms")


def starting(bundle: Path) -> None:
    """Start times: the first start with an uncalibrated bundle measures its costs, later ones find them cached."""
    firsts, others = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            for found in (firsts, others):
                with Server(bundle, cache=cache) as server:
                    found.append(server.ready_seconds)
    print(f"ready after {min(firsts):.2f} s with an empty cache, else {min(others):.2f} s (least of 3)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--prompt-tokens", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    options = ("--max-queue", "1", "--max-queue-per-key", "1")
    starting(arguments.bundle)
    with (
        specexport.load(arguments.bundle, prompt_cache_bytes=None) as session,  # as the server does
        Server(arguments.bundle, *options) as server,
    ):
        overhead(session, server, arguments.requests, arguments.prompt_tokens, arguments.tokens)
        while_busy(server)
    held_up(arguments.bundle)


if __name__ == "__main__":
    main()
