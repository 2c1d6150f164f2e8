"""Names in place of paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.runtime.hub import command_line, name_of


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


def test_a_command_keeps_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1" / "a b").mkdir(parents=True)
    given = ["build", "--target=/jo/t", "--draft", "n=~/d", "--draft=code=/jo/d", "--draft", "lr=1/a b", "-o./jo/x"]
    given += ["--precision", "int8", "--logit-bias", "3=-1.5", "--engine=onnxruntime", "--draft", "org/d"]
    assert command_line(given) == (
        "specexport build --target=t --draft n=d --draft=code=d --draft 'a b' -ox --precision int8 --logit-bias 3=-1.5 "
        "--engine=onnxruntime --draft org/d"
    )
