from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.serving import STARTED, ServerProcess


@pytest.fixture(scope="session", autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session", params=["tiny", pytest.param("demo", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One process for all tests that leave it as they find it."""
    bundle = request.getfixturevalue("served_bundle" if request.param == "tiny" else "demo_bundle")
    process = ServerProcess(bundle, tmp_path_factory.mktemp("serve") / "log")
    yield process
    assert process.end() == 0, process.log.read_text()
