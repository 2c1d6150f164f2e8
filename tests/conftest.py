from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings
from support.pair import Pair

# The same examples in every run, however busy the host is.
settings.load_profile("ci")
# No test asks the hub, and every refusal of a name that is no folder comes at once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_WAIT_POLICY"] = "passive"  # torch's waiting threads would take the cores from the other workers
# No handlers, torch's own included: pytest would add one, and torch print every graph of an export for it, which takes
# a sixth of the export's time.
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]
Once = Callable[[str, Callable[[Path], object]], Path]


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and Python leaves it so."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: the workers share what is left at the end in halves, and a long one there would run alone."""
    items.sort(key=lambda item: [item.get_closest_marker(mark) is None for mark in ("real", "nightly", "slow")])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part-times", action="store_true", help="tell how long the tests of each folder took")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """By folder, summed over workers, and within it what only `make test-all` runs."""
    if not config.getoption("--part-times"):
        return
    times: dict[str, list[float]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = report.nodeid.split("::")[0].removeprefix("tests/").rpartition("/")[0] or "."
                found = times.setdefault(part, [0.0, 0.0])
                found[0] += report.duration
                found[1] += report.duration * ("nightly" in report.keywords)
    terminalreporter.section("seconds by part, in all workers, and of them nightly")
    for part, (all_, nightly) in sorted(times.items(), key=lambda item: -item[1][0]):
        terminalreporter.write_line(f"{all_:8.1f} {nightly:8.1f}  {part}")


@pytest.fixture(scope="session", autouse=True)
def cache(pytestconfig: pytest.Config) -> Iterator[Path]:
    """The stages of this run and of earlier ones, never the user's own. Their keys hash the exporter's sources.

    Tests about reuse take a folder of their own. TEST_STAGES: a folder that outlives this checkout.
    """
    with pytest.MonkeyPatch.context() as patch:
        base = Path(os.environ.get("TEST_STAGES") or pytestconfig.cache.mkdir("stages"))
        patch.setenv("XDG_CACHE_HOME", str(base))
        yield base / "specexport"


@pytest.fixture(scope="module")
def short_spans() -> Iterator[None]:
    """16, 32 and 64 rows, so that a capacity of 64 has a ladder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 16)
        yield


@pytest.fixture(scope="session", autouse=True)
def quiet_host() -> Iterator[None]:
    """What `calibrate` and `bench` warn of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
        yield


@pytest.fixture
def drafts_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sessions of `load` that nobody calibrated, which otherwise draft what pays by costs that they measure."""
    monkeypatch.setattr("specexport.runtime.session.first_costs", lambda session, draft="model": None)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """once(name, make): the folder `name` of this run; the first worker to ask for it makes it with `make(folder)`."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # a worker's base lies in the run's

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def pair(once: Once) -> Pair:
    def make(folder: Path) -> None:
        from support.tiny import save_checkpoint

        save_checkpoint(folder / "target", seed=1)
        save_checkpoint(folder / "draft", seed=2, num_hidden_layers=1)

    base = once("pair", make)
    return Pair(base / "target", base / "draft")


def build_in(folder: Path, target: object, draft: object, name: str = "tiny.bundle", **options: Any) -> Path:
    """The bundle's folder. Imported here: tests of the runtime have no exporter."""
    from specexport.exporter.build import build
    from specexport.exporter.options import BuildOptions

    folder.mkdir(exist_ok=True)  # a worker before this one may have failed
    return build(str(target), str(draft), folder / name, BuildOptions(**options)).bundle.root


@pytest.fixture(scope="session")
def built(pair: Pair, cache: Path, once: Once) -> Path:
    """A bundle of the pair, built once. Not to be changed: `bundle` is a copy for that."""
    size = dict(max_seq_len=64, prompt_chunk=16, cache=cache)
    return once("built", lambda folder: build_in(folder, pair.target, pair.draft, **size)) / "tiny.bundle"


@pytest.fixture(scope="session")
def compilable(pair: Pair, cache: Path, once: Once) -> Path:
    """The pair for the CPU, with the graphs that TensorRT compiles, as older builds had them. Not to be changed."""

    def make(folder: Path) -> None:
        from specexport.bundle import Bundle, write_manifest

        size = dict(max_seq_len=64, prompt_chunk=16, cache=cache)
        root = build_in(folder, pair.target, pair.draft, engines=("onnxruntime", "tensorrt"), **size)
        write_manifest(root, replace(Bundle.open(root).manifest, engines=("onnxruntime",)))

    return once("compilable", make) / "tiny.bundle"


@pytest.fixture(scope="session")
def demo_bundle(cache: Path, once: Once) -> Path:
    """The committed demo pair as `make demo` builds it. Not to be changed."""
    pair = Path(__file__).parent.parent / "examples/demo_pair"

    def make(folder: Path) -> None:
        build_in(folder, pair / "target", pair / "draft", "demo.bundle", cache=cache)

    return once("demo-bundle", make) / "demo.bundle"


@pytest.fixture(scope="session")
def served_bundle(cache: Path, once: Callable[..., Path]) -> Path:
    """A tiny pair with room for 1200 tokens and a chat template. Its random text is full of halves of characters."""

    def make(folder: Path) -> None:
        from support.tiny import save_checkpoint

        size: dict[str, Any] = {"max_position_embeddings": 2048}
        target = save_checkpoint(folder / "target", seed=1, **size)
        draft = save_checkpoint(folder / "draft", seed=1, num_hidden_layers=1, **size)
        build_in(folder, target, draft, max_seq_len=1200, prompt_chunk=64, cache=cache)

    return once("served", make) / "tiny.bundle"


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy.bundle"))


@pytest.fixture(scope="session")
def smollm2_bundle(once: Once) -> Path:
    """SmolLM2-135M-Instruct in fp32 with the EAGLE-3 head that is shipped for it; for tests that are marked `real`."""
    from support.real import HEAD, missing, smollm2_gguf

    if lacking := missing():
        pytest.skip(f"needs {', '.join(lacking)}")

    def make(folder: Path) -> None:
        options: dict[str, Any] = dict(max_seq_len=256, max_draft_tokens=8, cache=folder / "stages")
        build_in(folder, smollm2_gguf(), HEAD, "smol.bundle", **options)
        shutil.rmtree(folder / "stages")  # 0.7 GB for each state of the exporter's sources, if they were kept

    return once("smollm2-bundle", make) / "smol.bundle"
