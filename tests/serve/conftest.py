from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import STARTED, ServerProcess


@pytest.fixture(scope="session", autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def served_bundle(cache: Path, once: Callable[..., Path]) -> Path:
    """A tiny pair with room for 1200 tokens and a chat template. Its random text is full of halves of characters."""

    def make(folder: Path) -> None:
        from specexport.exporter.build import build
        from specexport.exporter.request.options import BuildOptions
        from support.tiny import save_checkpoint

        size: dict[str, Any] = {"max_position_embeddings": 2048}
        save_checkpoint(folder / "target", seed=1, **size)
        save_checkpoint(folder / "draft", seed=1, num_hidden_layers=1, **size)
        options = BuildOptions(max_seq_len=1200, prompt_chunk=64, cache=cache)
        build(str(folder / "target"), str(folder / "draft"), folder / "tiny.bundle", options)

    return once("served", make) / "tiny.bundle"


@pytest.fixture(scope="session", params=["tiny", pytest.param("demo", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One process for all tests that leave it as they find it."""
    bundle = request.getfixturevalue("served_bundle" if request.param == "tiny" else "demo_bundle")
    process = ServerProcess(bundle, tmp_path_factory.mktemp("serve") / "log")
    yield process
    assert process.end() == 0, process.log.read_text()
