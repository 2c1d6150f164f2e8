"""No file of a bundle says in which folder of whose machine it was made."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.pair import Pair
from test_cli_process import MAIN, python

pytestmark = pytest.mark.slow

NAME = "telltale"


def test_nothing_in_a_bundle_tells_where_it_was_made(pair: Pair, cache: Path, tmp_path: Path) -> None:
    home = tmp_path / NAME / "home"
    for place, model in (("t", pair.target), ("lr=1/d", pair.draft)):
        shutil.copytree(model, home / place)
    prompts, bundle = home / "p.jsonl", home / "x.bundle"
    prompts.write_text("".join(f'{{"route": "a", "prompt": "def add{n}(a, b)"}}\n' for n in range(3)))
    draft, where = home / "lr=1" / "d", ("--cache", cache)
    drafts = (f"--draft={draft}", "--draft", f"more={draft}")
    commands = [
        ("build", "--target", home / "t", *drafts, "--max-seq-len", 64, f"--output={bundle}", *where),
        ("calibrate", bundle, "--prompts", prompts, "--max-new-tokens", 10),
    ]
    for command in commands:
        done = python(MAIN, *command)
        assert done.returncode == 0, done.stderr
    files = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    assert {"manifest.json", "report.md", "policy.json", "costs.json"} <= {file.name for file in files}
    # also: the sources of what was traced, the interpreter's folder
    for word in (NAME, str(tmp_path), str(Path(__file__).parents[1]), sys.prefix, os.path.dirname(os.__file__)):  # noqa: PTH120
        assert not [file for file, content in files.items() if word.encode() in content], word
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"].startswith(
        "specexport build --target t --draft=d --draft more=d --max-seq-len 64 --output="
    )
    assert [model["source"] for model in (manifest["target"], manifest["drafts"][1]["model"])] == ["t", "d"]
