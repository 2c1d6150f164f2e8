"""Ray's autoscaling with the application: replicas come under load and go when nothing is asked."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import yaml
from support.ray_server import RayServer
from support.serving import PATIENCE

pytestmark = pytest.mark.ray
pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'specexport[ray]'")
EXAMPLES = Path(__file__).parents[2] / "examples/scale_out"


class Load:
    """Four clients that ask one request after the other."""

    def __init__(self, server: RayServer) -> None:
        self.server, self.over, self.statuses = server, threading.Event(), set[int]()
        self.replicas = set[str]()
        self.threads = [threading.Thread(target=self._ask) for _ in range(4)]

    def _ask(self) -> None:
        body = {"prompt": "Hello", "max_tokens": 200, "temperature": 0, "stop_token_ids": []}
        while not self.over.is_set():
            status, headers, _ = self.server.ask("POST", "/v1/completions", body)
            self.statuses.add(status)
            self.replicas.add(headers.get("x-specexport-replica", "none"))

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def wait_for_replicas(server: RayServer, count: int) -> None:
    end = time.monotonic() + 2 * PATIENCE
    while len(server.replicas()) != count:
        assert time.monotonic() < end, server.replicas()
        time.sleep(0.2)


def test_replicas_follow_the_load(served_bundle: Path, tmp_path: Path) -> None:
    scaling = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 1, "downscale_delay_s": 2}
    server = RayServer(tmp_path / "log", bundles=str(served_bundle), autoscaling=scaling, drain_timeout=5)
    try:
        assert len(server.replicas()) == 1
        with Load(server) as load:
            wait_for_replicas(server, 2)
            end = time.monotonic() + PATIENCE
            while len(load.replicas) < 2:  # the new one is asked too
                assert time.monotonic() < end
                time.sleep(0.1)
        assert load.statuses == {200}
        wait_for_replicas(server, 1)
        assert server.ask("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200
    finally:
        assert server.end() == 0, server.log.read_text()


def test_ray_reads_the_examples() -> None:
    from ray.serve.schema import ServeDeploySchema

    kuberay = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text(encoding="utf-8"))
    for text in (kuberay["spec"]["serveConfigV2"], (EXAMPLES / "ray.yaml").read_text(encoding="utf-8")):
        assert ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
