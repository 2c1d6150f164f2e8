"""Names in place of paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.runtime.hub import name_of


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("org/model", "org/model"),
        ("gpt2", "gpt2"),
        ("org/model:file.gguf", "org/model:file.gguf"),
        ("/home/jo/model", "model"),
        ("/home/jo/lr=1/q.gguf", "q.gguf"),
        ("~/model/", "model"),
        ("~nobody-here/model", "model"),
        ("../jo/models/x", "x"),
        ("C:\\Users\\jo\\model", "model"),
        ("here/model", "model"),  # a folder, though a hub id looks the same
        (".", "deep"),
        ("./", "deep"),
        ("..", "telltale"),
    ],
)
def test_names(source: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "telltale" / "deep"
    (folder / "here" / "model").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert name_of(source) == name
