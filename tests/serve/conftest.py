from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.ray_server import RayServer
from support.serving import STARTED, ServerProcess


@pytest.fixture(scope="session", autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(
    scope="session",
    params=["tiny", pytest.param("demo", marks=pytest.mark.nightly), pytest.param("ray", marks=pytest.mark.ray)],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess | RayServer]:
    """One process for all tests that leave it as they find it, and one behind Ray Serve where that is installed."""
    if request.param == "ray":
        pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'specexport[ray]'")
        bundle = request.getfixturevalue("served_bundle")
        log = tmp_path_factory.mktemp("ray") / "log"
        cluster = RayServer(log, bundles=str(bundle), max_ongoing_requests=100, drain_timeout=5)
        yield cluster
        assert cluster.end() == 0, cluster.log.read_text()
        return
    bundle = request.getfixturevalue("served_bundle" if request.param == "tiny" else "demo_bundle")
    process = ServerProcess(bundle, tmp_path_factory.mktemp("serve") / "log")
    yield process
    assert process.end() == 0, process.log.read_text()
