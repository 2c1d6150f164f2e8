"""What cannot be dumped is refused before the bundle's gigabytes are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from specexport.bundle import Bundle, CacheLayer, State, write_manifest
from specexport.cli import main
from support.doubles import write_bundle
from support.refusals import says

STATES = (CacheLayer(0, 0, (State("window", (2, 8)),)), CacheLayer(2, 4))


@pytest.fixture
def hybrid(tmp_path: Path) -> Bundle:
    """A bundle of which only the target keeps states."""
    root = tmp_path / "hybrid.bundle"
    bundle = write_bundle(root)
    manifest = replace(bundle.manifest, target=replace(bundle.manifest.target, layers=STATES))
    write_manifest(root, manifest)
    return Bundle(root, manifest)


def test_states_are_refused_before_a_file_is_read(
    hybrid: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "_digest", lambda self, name: pytest.fail(f"read {name}"))
    result = CliRunner().invoke(main, ["dump", str(hybrid.root), "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    says(result.stderr.strip(), "dumped")
