from __future__ import annotations

from pathlib import Path

import pytest
import specexport
from specexport.exporter.tuning.answers import Answers, write_all
from specexport.exporter.tuning.options import split
from support.tuning import OPTIONS, quiet, requests


@pytest.fixture(scope="module")
def answers(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    journal = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    with specexport.load(built) as session:
        return write_all(session, *split([*requests(40), *requests(10, "other")]), OPTIONS, journal, quiet)
