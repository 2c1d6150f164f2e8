from __future__ import annotations

from dataclasses import replace

import pytest
from specexport.bundle import Precision
from support.tiny import AS_STORED, CONTRACT, LLAMA, Exported, export_cached, save_model

# Large enough that no weight counts as a small constant.
CONFIG = LLAMA | dict(hidden_size=96, intermediate_size=128, num_attention_heads=4, tie_word_embeddings=True)


def exported_in(precision: Precision, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    base = tmp_path_factory.mktemp(precision)
    checkpoint = save_model(base / "checkpoint", config=CONFIG)
    return export_cached(checkpoint, base / "graphs", AS_STORED, replace(CONTRACT, precision=precision))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tied model in fp32, in the dialects that keep its weights as they are. Not to be changed."""
    return exported_in("fp32", tmp_path_factory)


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The same in bf16."""
    return exported_in("bf16", tmp_path_factory)
