"""The proof of a device's rules finds rules out that decide almost right."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.engines.base import Arrays, RunGraph
from specexport.engines.cuda.engine import device_graph
from specexport.engines.cuda.rule_kernels import RuleKernels
from specexport.engines.rules import RuleSpec, rule_specs
from specexport.runtime.proofs import rule_parity
from specexport.runtime.proofs.rule_parity import measure_rule
from support import cuda_on_host
from support.fake_device import FakeDevice
from support.fake_kernels import KERNELS

VOCAB = 600  # several blocks
SPECS = {spec.name: spec for spec in rule_specs(3)}


def opened(spec: RuleSpec) -> RunGraph:
    device = FakeDevice()
    kernels = RuleKernels(spec, VOCAB, device)
    with device.entered():
        scratch = device.allocate(kernels.scratch_bytes, "scratch")
    return device_graph(kernels, device, scratch)


@pytest.mark.parametrize("name", SPECS)
def test_a_right_rule_passes(name: str) -> None:
    proof = measure_rule(opened(SPECS[name]), SPECS[name], VOCAB)
    assert proof.passed, proof
    assert proof.cases >= 2


# What the source says, and what it might: in which rules that must be found out.
FAULTS = {
    "the highest id wins": (
        {"other_id < best_id[tid]": "other_id > best_id[tid]", "> peak)": ">= peak)", "> best.top)": ">= best.top)"},
        ["select_greedy", "accept_greedy_1", "accept_greedy_3"],
    ),
    "a uniform of 0 accepts what has no probability": (
        {"judged.draft[count] < judged": "judged.draft[count] <= judged"},
        ["accept_token_1", "accept_token_2", "accept_token_3"],
    ),
    "where nothing is left, nothing is drawn": (
        {"row == k || !(lefts[row] > 0.0f)": "row == k"},
        ["accept_token_1", "accept_token_2", "accept_block_1", "accept_block_2", "accept_block_3"],
    ),
    "no temperature": ({" / row.temperature": ""}, ["select"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, names = FAULTS[fault]
    source = cuda_on_host.SOURCE.read_text()
    for right, wrong in changes.items():
        assert right in source
        source = source.replace(right, wrong)
    library = cuda_on_host.compiled(source)
    for kernel in cuda_on_host.NAMES:
        monkeypatch.setitem(KERNELS, kernel, cuda_on_host.kernel(kernel, lambda: library))
    for name in names:
        assert not measure_rule(opened(SPECS[name]), SPECS[name], VOCAB).passed, name


@pytest.mark.parametrize("name", ["select", "accept_token_2", "accept_block_2"])
def test_tokens_smaller_than_the_nudge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a vocabulary of 128k, where what float32 may move spans several tokens: those are right, others are not."""
    monkeypatch.setattr(rule_parity, "NUDGE", 0.02)
    run = opened(SPECS[name])
    assert measure_rule(run, SPECS[name], VOCAB).passed
    token = "token" if name == "select" else "next_token"

    def next_but_many(arrays: Arrays) -> Arrays:
        found = dict(run(arrays))
        return found | {token: (found[token] + VOCAB // 3) % VOCAB}

    assert not measure_rule(next_but_many, SPECS[name], VOCAB).passed


@pytest.mark.parametrize("name", ["select", "select_greedy"])
def test_what_is_no_number_must_be_told(name: str) -> None:
    """As a compiler hides that takes x - x for 0."""
    run = opened(SPECS[name])

    def hides(inputs: Arrays) -> Arrays:
        found = dict(run(inputs))
        return found | {"confidence": np.nan_to_num(found["confidence"])}

    assert measure_rule(run, SPECS[name], VOCAB).passed
    assert not measure_rule(hides, SPECS[name], VOCAB).passed
