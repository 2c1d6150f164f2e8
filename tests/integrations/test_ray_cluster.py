"""Two replicas behind Ray Serve, on this machine: which one answers, and what becomes of one that is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ray_server import RayServer
from support.serving import wait_for

pytestmark = pytest.mark.ray
pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'specexport[ray]'")
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def quantized_bundle(cache: Path, served_bundle: Path, once: Callable[..., Path]) -> Path:
    """The pair of `served_bundle` in int8."""

    def make(folder: Path) -> None:
        from specexport.exporter.build import build
        from specexport.exporter.options import BuildOptions

        pair = [str(served_bundle.parent / role) for role in ("target", "draft")]
        options = BuildOptions(max_seq_len=1200, prompt_chunk=64, precision="int8", cache=cache)
        build(pair[0], pair[1], folder / "int8.bundle", options)

    return once("served-int8", make) / "int8.bundle"


@pytest.fixture(scope="module")
def cluster(
    served_bundle: Path, quantized_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayServer]:
    found = RayServer(
        tmp_path_factory.mktemp("ray") / "log",
        bundles=[str(served_bundle), str(quantized_bundle)],
        model="pair",
        replicas=2,
        health_period=1,
        drain_timeout=5,
    )
    yield found
    assert found.end() == 0, found.log.read_text()


def asked(session: str | None, **fields: Any) -> tuple[dict[str, Any], dict[str, str]]:
    headers = {"Content-Type": "application/json"} | ({} if session is None else {"x-session-id": session})
    return {"prompt": "Hello", "temperature": 0, "stop_token_ids": [], **fields}, headers


def answer(cluster: RayServer, session: str | None, **fields: Any) -> tuple[str, dict[str, Any]]:
    """(replica, answer)."""
    body, lines = asked(session, **fields)
    status, headers, told = cluster.ask("POST", PATH, body, lines)
    assert status == 200, told
    return headers["x-specexport-replica"], json.loads(told)


class Open:
    """A stream whose rest is not read yet."""

    def __init__(self, cluster: RayServer, session: str, **fields: Any) -> None:
        body, lines = asked(session, stream=True, **fields)
        self.connection = cluster.connection()
        self.connection.request("POST", PATH, json.dumps(body).encode(), lines)
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        self.replica = self.response.headers["x-specexport-replica"]
        self.begun = self.response.read(200)

    def rest(self) -> bytes:
        try:
            return self.begun + self.response.read()
        finally:
            self.response.close()
            self.connection.close()


def text_of(events: bytes) -> str:
    lines = [line.removeprefix("data: ") for line in events.decode().split("\n\n") if line.startswith("data: {")]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def test_a_session_keeps_to_its_replica_and_others_do_not(cluster: RayServer) -> None:
    for session in cluster.sessions(2):
        assert len({answer(cluster, session, max_tokens=2)[0] for _ in range(6)}) == 1
    assert set(cluster.replicas()) == {answer(cluster, None, max_tokens=2)[0] for _ in range(40)}


def test_turns_find_their_rows(cluster: RayServer) -> None:
    prompts = dict.fromkeys((f"turn-{number}" for number in range(4)), "Once upon a time")
    for turn in range(3):
        for session, prompt in prompts.items():
            found = answer(cluster, session, prompt=prompt + session, max_tokens=8)[1]
            cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert turn == 0 or cached == found["usage"]["prompt_tokens"] - 1, (session, turn)


def test_addresses_share_no_rows(cluster: RayServer) -> None:
    """What lies behind Ray's proxy knows whose request it is."""

    def cached(address: str) -> int:
        body, lines = asked("addresses", prompt="A prompt of its own for this test", max_tokens=1)
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, source_address=(address, 0))
        connection.request("POST", PATH, json.dumps(body), lines)
        found = json.loads(connection.getresponse().read())["usage"]
        connection.close()
        return int(found["prompt_tokens_details"]["cached_tokens"])

    assert cached("127.0.0.1") <= 1
    assert cached("127.0.0.1") > 5
    assert cached("127.0.0.2") == 0


def test_each_replica_has_a_bundle_and_says_which(cluster: RayServer) -> None:
    found = {session: answer(cluster, session, max_tokens=4) for session in cluster.sessions(2)}
    assert {told["model"] for _, told in found.values()} == {"pair"}
    assert len({told["system_fingerprint"] for _, told in found.values()}) == 2
    weights = set()
    for session, (_, told) in found.items():
        models = json.loads(cluster.ask("GET", "/v1/models", headers={"x-session-id": session})[2])
        meta = models["data"][0]["meta"]
        assert told["system_fingerprint"] == f"fp_{meta['bundle']}-onnxruntime"
        weights.add(meta["precision"])
    assert weights == {"fp32", "int8"}


def test_a_client_that_leaves_frees_its_replica(cluster: RayServer) -> None:
    session = cluster.sessions(2)[0]
    Open(cluster, session, max_tokens=1100).connection.close()

    def cancelled() -> bool:
        text = cluster.ask("GET", "/metrics", headers={"x-session-id": session})[2].decode()
        return any("abort" in line and not line.endswith(" 0.0") for line in text.splitlines())

    wait_for(cancelled)


def test_rays_metrics_have_ours(cluster: RayServer) -> None:
    answer(cluster, None, max_tokens=2)

    def there() -> bool:
        with socket.create_connection(("127.0.0.1", cluster.metrics_port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            text = connection.makefile().read()
        lines = [line for line in text.splitlines() if line.startswith("ray_specexport_")]
        wanted = ("generation_tokens_total", "num_requests_running", "e2e_request_latency_seconds_bucket")
        return all(any(line.startswith(f"ray_specexport_{name}{{") for line in lines) for name in wanted)

    wait_for(there)


def test_a_replica_that_is_killed_in_mid_stream(cluster: RayServer) -> None:
    mine, others = cluster.sessions(2)
    whole = answer(cluster, others, max_tokens=1000)[1]["choices"][0]["text"]
    lost, kept = Open(cluster, mine, max_tokens=1100), Open(cluster, others, max_tokens=1000)
    assert lost.replica != kept.replica
    os.kill(cluster.replicas()[lost.replica], signal.SIGKILL)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):  # an error that its client sees
        lost.rest()
    events = kept.rest()
    assert events.endswith(b"data: [DONE]\n\n")
    assert text_of(events) == whole
    assert answer(cluster, mine, max_tokens=4)[0] != lost.replica
    wait_for(lambda: len(cluster.replicas().keys() - {lost.replica}) == 2)  # another one in its place
