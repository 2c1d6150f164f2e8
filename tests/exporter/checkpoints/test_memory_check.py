from __future__ import annotations

from pathlib import Path

import pytest
from specexport.errors import OutputError
from specexport.exporter import memory as memory_check
from specexport.exporter.memory import available, require_memory
from support.refusals import refused


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 8 GB free."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    7812500 kB\n")
    monkeypatch.setattr(memory_check, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_check, "GROUP", tmp_path)
    return tmp_path


def test_the_host_or_its_group_whichever_is_less(host: Path) -> None:
    assert available() == 8_000_000_000
    (host / "memory.current").write_text("1000\n")
    (host / "memory.stat").write_text("anon 900\nfile 500\ninactive_file 10\nactive_file 20\n")
    (host / "memory.max").write_text("max\n")
    assert available() == 8_000_000_000
    (host / "memory.max").write_text("6000\n")
    assert available() == 5030


def test_what_does_not_fit_is_refused_before_it_starts(host: Path) -> None:
    require_memory(1_300_000_000, "fp32", False, 4096)
    with refused(OutputError, "--precision", "1.3", code="out_of_memory"):
        require_memory(1_300_000_000, "fp32", True, 4096)
    require_memory(700_000_000, "fp16", True, 4096)
    with refused(OutputError, "0.7", code="out_of_memory"):
        require_memory(700_000_000, "fp16", True, 4096, folded=True)
    with refused(OutputError, "2.0", code="out_of_memory"):
        require_memory(2_000_000_000, "fp32", False, 4096)
    with refused(OutputError, "4.0", code="out_of_memory"):
        require_memory(4_000_000_000, "bf16", False, 4096)
    require_memory(2_000_000_000, "fp16", False, 4096)
    with refused(OutputError, "2.0", code="out_of_memory"):
        require_memory(2_000_000_000, "fp16", False, 4096, beside=4_000_000_000)
