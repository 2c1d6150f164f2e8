from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pair import Pair

# No test asks the hub, and every refusal of a name that is no folder comes at once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of finished stages, never the user's own."""
    base = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base))
        yield base / "specexport"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    from support.tiny import save_checkpoint

    base = tmp_path_factory.mktemp("pair")
    return Pair(save_checkpoint(base / "target", seed=1), save_checkpoint(base / "draft", seed=2, num_hidden_layers=1))


@pytest.fixture(scope="session")
def built(pair: Pair, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the pair, built once. Not to be changed: `bundle` is a copy for that."""
    from specexport.exporter.build import build
    from specexport.exporter.request.options import BuildOptions

    output = tmp_path_factory.mktemp("built") / "tiny.bundle"
    build(str(pair.target), str(pair.draft), output, BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache))
    return output


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy.bundle"))
