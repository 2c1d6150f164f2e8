"""What is shipped is what the source says. The kernels themselves: test_rule_kernels.py."""

from __future__ import annotations

import hashlib
import re

from specexport.engines.cuda import rule_kernels
from support.cuda_on_host import SOURCE


def test_the_ptx_is_that_of_the_source() -> None:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    assert digest in rule_kernels.ptx().splitlines()[0], "run scripts/compile_rules.py"
    # for drivers from CUDA 12.0 and GPUs from Volta on
    assert re.findall(r"^\.(?:version|target) (.*)", rule_kernels.ptx(), re.MULTILINE) == ["8.0", "sm_70"]
