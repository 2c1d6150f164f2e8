"""A build that is killed, or cut off by the disk, leaves no bundle; the next one cleans up behind it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from specexport.bundle import Bundle
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from support.pair import Pair

pytestmark = pytest.mark.nightly

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(pair: Pair, cache: Path, built: Path, tmp_path: Path) -> Start:
    """Start a build in a process of its own, `before` being code that runs before it."""

    def start(before: str) -> subprocess.Popen[str]:
        script = f"""
            import resource, signal, time
            from pathlib import Path
            from specexport.errors import SpecExportError
            from specexport.exporter import build as module

            def hang(*args):
                print("hanging", flush=True)
                time.sleep(600)

            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by children of a background shell
            cache = Path({str(cache)!r})
            {before}
            options = module.BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache)
            try:
                module.build({str(pair.target)!r}, {str(pair.draft)!r}, {str(tmp_path / "out.bundle")!r}, options)
            except SpecExportError as error:
                print(type(error).__name__, error)
        """
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
        )

    return start


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (signal.SIGTERM, "prove"),
        (signal.SIGINT, "prove"),
        (signal.SIGKILL, "prove"),
        (signal.SIGKILL, "write_manifest"),
    ],
)
def test_a_killed_build(
    number: signal.Signals, place: str, start: Start, pair: Pair, cache: Path, tmp_path: Path
) -> None:
    with start(f"module.{place} = hang") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        (temporary,) = names(tmp_path)
        assert temporary.startswith(".out.bundle.tmp-")
        process.send_signal(number)
        assert process.wait() != 0
    assert names(tmp_path) == ([temporary] if number == signal.SIGKILL else [])
    if number == signal.SIGKILL:
        build(
            str(pair.target),
            str(pair.draft),
            tmp_path / "out.bundle",
            BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache),
        )
        assert names(tmp_path) == ["out.bundle"]
        Bundle.open(tmp_path / "out.bundle")


def test_a_stage_killed_while_it_is_made(start: Start, tmp_path: Path) -> None:
    before = f"cache = Path({str(tmp_path / 'cache')!r}); "
    before += "from specexport.exporter import export_model; export_model.trace = hang"
    with start(before) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert names(tmp_path) == ["cache"]
    assert names(tmp_path / "cache") == []
