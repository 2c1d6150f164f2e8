"""A soak test: a server under random requests from a seed must refuse and answer correctly, and release everything.

It checks that every status is the one that its request should have, or a documented refusal with Retry-After; that
every answer that was read to its end is what the same request gets alone on a new session; that nothing keeps running
for a client that has disconnected, and its descriptor is closed; that the log has no traceback; that the process ends
with 0; and that memory grows by less than the answers, in runs that are long enough to judge that.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import bad
from .alone import alone
from .client import Answer, ask, leave, send_raw
from .good import Good, Pool
from .growth import growth
from .serving import Sample, Server
from .slope import Slope, fit

TEMPLATE = Path(__file__).parent / "tools.jinja"
CACHE_MIB = 16  # of prompt cache, so that it is full after the warm-up
REFUSALS = (429, 503)
# In a stream whose status was sent before the queue dropped it, or refused the second of its prompts.
LATE = re.compile('"code":"queue_(timeout|full)"')
BURST = 30  # requests at once, more than the queue takes
MIB = 1 << 20


@dataclass(frozen=True)
class SoakOptions:
    minutes: float = 5.0
    seed: int = 0
    clients: int = 4
    distinct: int = 300  # good requests, which are repeated
    pause: float = 0.05  # seconds between a client's requests, on average


@dataclass
class Tally:
    """The results. slowest: seconds, by kind. said: all answers, by the number of the good request."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    said: dict[int, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    answered: int = 0  # bytes
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)  # set when no more requests are to be sent

    def guarded(self, call: Callable[..., None], *given: Any) -> None:
        """Run `call`; an exception is recorded, whether it is the server's fault or ours."""
        try:
            call(*given)
        except Exception as error:
            with self.lock:
                self.wrong.append(f"a client saw {type(error).__name__}: {error}")

    def note(self, kind: str, answer: Answer, allowed: frozenset[int], number: int | None = None) -> None:
        late = bool(LATE.search(answer.error or "")) and not answer.told
        refused = late or (answer.status in REFUSALS and "retry-after" in answer.headers)
        with self.lock:
            self.statuses[kind, 503 if late else answer.status] += 1
            self.answered += len(answer.body)
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), answer.seconds)
            if answer.error is not None and not refused:
                self.wrong.append(f"{kind}: a stream ended with {answer.error[:200]}")
            elif answer.status not in allowed and not refused:
                self.wrong.append(f"{kind}: status {answer.status}, expected {sorted(allowed)}: {answer.body[:200]!r}")
            elif answer.told is not None and number is not None:
                self.said.setdefault(number, Counter())[answer.told] += 1


class Client:
    """One of several concurrent clients. Its actions depend only on the seed; their results also on the others."""

    def __init__(self, port: int, pool: Pool, capacity: int, tally: Tally, seed: str, pause: float) -> None:
        self._port, self._pool, self._capacity, self._tally, self._pause = port, pool, capacity, tally, pause
        self._chance = random.Random(seed)

    def run(self, until: float) -> None:
        while time.monotonic() < until and not self._tally.over.is_set():
            self._tally.guarded(self._one)
            time.sleep(self._chance.expovariate(1 / self._pause) if self._pause else 0)

    def _one(self) -> None:
        number = self._chance.randrange(len(self._pool.requests))
        good, what = self._pool.requests[number], self._chance.random()
        if what < 0.35:
            self._ask(number, good, stream=False)
        elif what < 0.65:
            self._ask(number, good, stream=True)
        elif what < 0.8:
            after, reset = self._chance.choice((0, 1, 200, 1000, 3000)), self._chance.random() < 0.5
            stream = self._chance.random() < 0.8
            answer = leave(self._port, good.path, good.body(stream), after, reset)
            self._tally.note("left", answer, frozenset({0, 200}))
        elif what < 0.997:
            self._send(bad.draw(self._chance, good, self._capacity))
        else:
            self._burst(number, good)

    def _ask(self, number: int, good: Good, stream: bool) -> None:
        answer = ask(self._port, "POST", good.path, good.body(stream))
        self._tally.note(f"{good.kind}, {'stream' if stream else 'whole'}", answer, frozenset({200}), number)

    def _send(self, request: bad.Bad) -> None:
        self._tally.note(request.kind, send_raw(self._port, request.data, request.wait), request.statuses)

    def _burst(self, number: int, good: Good) -> None:
        asked = (self._ask, number, good, False)
        threads = [threading.Thread(target=self._tally.guarded, args=asked) for _ in range(BURST)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def soak(bundle: Path, options: SoakOptions) -> dict[str, Any]:
    """Run the test; returns figures and findings as JSON."""
    tally, samples, counts = Tally(), list[Sample](), list[int]()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        own = ("--threads", "1", "--prompt-cache-mib", str(CACHE_MIB), "--chat-template", str(TEMPLATE))
        server = Server(bundle, Path(folder) / "log", Path(folder) / "cache", *own)
        try:
            capacity = json.loads(ask(server.port, "GET", "/v1/models", None).body)["data"][0]["max_model_len"]
            pool = Pool(options.seed, options.distinct, capacity, tools=True)
            _warm_up(server.port, pool, tally)
            before, start = server.sample(), time.monotonic()
            _load(server, pool, capacity, tally, options, samples, counts)
            seconds, after = time.monotonic() - start, _at_rest(server, tally, before.descriptors)
            found = server.metrics()
        finally:
            code = server.end() if server.process.poll() is None else server.process.returncode
        if code:
            tally.wrong.append(f"the server ended with {code}")
        tally.wrong += log_faults(server.log)
    if not any(count for (_, status), count in tally.statuses.items() if status == 200):
        tally.wrong.append("nothing was answered with 200")
    kept = growth([sample.rss for sample in samples], counts, tally.answered)
    if kept.kept:
        tally.wrong.append(f"memory: {kept.told}")
    different = _compared(bundle, pool, tally)
    return _report(options, tally, samples, different, (before, after)) | {
        "seconds": seconds,
        "memory": kept.told,
        "tokens": found["specexport:generation_tokens_total"],
        "compared": {"requests": len(tally.said), "answers": sum(sum(c.values()) for c in tally.said.values())},
    }


def _warm_up(port: int, pool: Pool, tally: Tally) -> None:
    """Send some requests, so that everything that is made only once exists: grammars, caches, threads."""
    for number, good in list(enumerate(pool.requests))[:20]:
        answer = ask(port, "POST", good.path, good.body(number % 2 == 0))
        tally.note("warm-up", answer, frozenset({200}), number)


def _load(
    server: Server,
    pool: Pool,
    capacity: int,
    tally: Tally,
    options: SoakOptions,
    samples: list[Sample],
    counts: list[int],
) -> None:
    """Run the clients. samples, counts: get samples at intervals, and how many requests were finished then."""
    until = time.monotonic() + 60 * options.minutes
    clients = [
        Client(server.port, pool, capacity, tally, f"{options.seed}-{number}", options.pause)
        for number in range(options.clients)
    ]
    threads = [threading.Thread(target=client.run, args=(until,)) for client in clients]
    threads.append(threading.Thread(target=_dawdle, args=(server.port, pool, tally, options.seed, until)))
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if server.process.poll() is not None:
            tally.wrong.append(f"the server died with {server.process.returncode}")
            tally.over.set()
            break
        samples.append(server.sample())
        counts.append(sum(tally.statuses.values()))
        time.sleep(max(60 * options.minutes / 600, 0.25))
    for thread in threads:
        thread.join()


def _dawdle(port: int, pool: Pool, tally: Tally, seed: int, until: float) -> None:
    """One client after another that never finishes its body; each takes 30 seconds."""
    chance = random.Random(f"{seed}-dawdle")

    def once() -> None:
        request = bad.dawdle(chance, chance.choice(pool.requests))
        tally.note(request.kind, send_raw(port, request.data, True), request.statuses)

    while time.monotonic() + 35 < until and not tally.over.is_set():
        tally.guarded(once)


def _at_rest(server: Server, tally: Tally, descriptors: int) -> Sample:
    """When no more requests are sent, nothing may run, and every connection must be closed."""
    try:
        server.wait_until_idle()
    except TimeoutError as error:
        tally.wrong.append(str(error))
    for _ in range(100):
        found = server.sample()
        if found.descriptors <= descriptors:
            break
        time.sleep(0.1)
    else:
        tally.wrong.append(f"{found.descriptors} descriptors at rest, {descriptors} before")
    return found


def log_faults(log: Path) -> list[str]:
    """Lines that are not JSON, and lines about errors: the server's log consists of lines of JSON."""
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            found.append(f"the log has a line that is no JSON: {line[:200]}")
            continue
        if row.get("level") in ("error", "critical") or "Traceback" in line:
            found.append(f"the log has an error: {line[:300]}")
    return found[:20]


def _compared(bundle: Path, pool: Pool, tally: Tally) -> list[dict[str, Any]]:
    """Answers that differ from those of the same request alone."""
    found = []
    for number, said in sorted(tally.said.items()):
        request = pool.requests[number]
        expected = alone(bundle, request, TEMPLATE)
        found += [
            {"kind": request.kind, "request": request.fields, "times": times, "alone": expected, "served": told}
            for told, times in said.items()
            if told != expected
        ]
    return found


def _report(
    options: SoakOptions, tally: Tally, samples: list[Sample], different: list[Any], rest: tuple[Sample, Sample]
) -> dict[str, Any]:
    times = [sample.seconds for sample in samples]
    series: dict[str, tuple[list[float], Slope]] = {}
    for name, scale in (("rss", MIB), ("descriptors", 1), ("threads", 1)):
        values = [getattr(sample, name) / scale for sample in samples]
        series[name] = values, fit(times, values)
    return {
        "options": asdict(options),
        "passed": not tally.wrong and not different,
        "requests": sum(tally.statuses.values()),
        "statuses": [[kind, status, count] for (kind, status), count in sorted(tally.statuses.items())],
        "slowest": tally.slowest,
        "wrong": tally.wrong[:100],
        "different": different[:20],
        "differing": len(different),
        "times": times,
        "series": {name: values for name, (values, _) in series.items()},
        "slopes": {name: asdict(slope) | {"flat": slope.flat} for name, (_, slope) in series.items()},
        "at_rest": {
            "before": asdict(rest[0]),
            "after": asdict(rest[1]),
        },
    }
