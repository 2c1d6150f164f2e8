"""Quantized layers beside layers that keep states: right graphs pass, one wrong part does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from specexport.bundle import COUNTS, Format
from specexport.engines.base import OpenedDraft
from specexport.engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from specexport.engines.onnxruntime.states import OrtStates
from specexport.errors import ProofError
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE, Rounding, measure
from support.hybrids import KINDS, MORE, save_hybrid
from support.quantized import (
    Damage,
    Quantized,
    block_transposed,
    groups_swapped,
    load,
    plain_recipe,
    quantized_hybrid,
    scale_off,
    table_off_by_one,
)
from support.tiny import CONTRACT, VOCAB

Form = tuple[str, Format]
Make = Callable[[Form], Quantized]
FAST: list[Form] = [("delta rule", "int8"), ("scan", "int4")]
SLOW: list[Form] = [
    *((kind, form) for kind in KINDS for form in ("int8", "int4") if (kind, form) not in FAST),
    *zip(MORE, cycle(("int8", "int4"))),
]
FORMS = [*FAST, *(pytest.param(form, marks=pytest.mark.nightly, id=" in ".join(form)) for form in SLOW)]
# Of the layer that keeps a state: what goes into it, and what comes out; and what follows it.
INTO = {"delta rule": "linear_attn.in_proj_qkv", "scan": "mamba.in_proj"}
OUT = {"delta rule": "linear_attn.out_proj", "scan": "mamba.out_proj"}
BEHIND = {"delta rule": "layers.1.mlp.down_proj", "scan": "layers.1.feed_forward.down_proj"}
DAMAGE: dict[str, Callable[[str], Damage]] = {
    "a scale 10 % off in front of the state": lambda kind: scale_off(INTO[kind]),
    "groups swapped behind the state": lambda kind: groups_swapped(OUT[kind]),
    "a block transposed": lambda kind: block_transposed(OUT[kind]),
    "a scale 10 % off in a later layer": lambda kind: scale_off(BEHIND[kind]),
    "the table off by one row": lambda kind: table_off_by_one,
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[Form, Quantized] = {}

    def make(form: Form) -> Quantized:
        if form not in made:
            made[form] = quantized_hybrid(tmp_path_factory.mktemp("quantized"), *form)
        return made[form]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=" in ".join)
def test_a_right_graph_passes(form: Form, make: Make) -> None:
    made = make(form)
    proof = made.prove()
    assert proof.layers >= 10
    assert proof.layer_error < 1
    assert proof.as_run
    assert proof.exact_error < LOGIT_TOLERANCE["fp32"] / 2
    assert made.recorded.rounding > 0
    kind = Rounding(made.recorded.rounding, "fp32")
    (end_to_end,) = measure(OpenedDraft(made.decoder()), list(made.recorded.reference), ("", "ort"), "target", kind)
    assert end_to_end.passed


@pytest.mark.nightly
@pytest.mark.parametrize("form", [("delta rule", "int8"), ("scan", "int4"), ("convolution", "int8")], ids=" in ".join)
def test_a_right_graph_for_tensorrt_passes(form: Form, tmp_path: Path) -> None:
    kind, numbers = form
    model = load(save_hybrid(tmp_path / "checkpoint", kind))
    made = Quantized(tmp_path, model, numbers, "onnx", CONTRACT, plain_recipe(model, numbers, "onnx", block=16))
    proof = made.prove()
    assert proof.layers >= 10
    assert proof.layer_error < 1
    assert proof.exact_error < LOGIT_TOLERANCE["fp32"] / 2


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("form", FAST, ids=" in ".join)
def test_one_wrong_layer_fails(form: Form, damage: str, make: Make) -> None:
    with pytest.raises(ProofError):
        make(form).prove(DAMAGE[damage](form[0]))


def _one_more_is_certain(self: OrtStates, position: int, count: int, prompt: bool = False) -> int:
    finished = OWN_BEGIN(self, position, count, prompt)
    if position and self._counts[COUNTS[0]][0]:
        self._counts[COUNTS[1]][0] += 1
    return finished


def _one_fewer_counts(self: OrtStates, position: int, count: int, prompt: bool = False) -> int:
    finished = OWN_BEGIN(self, position, count, prompt)
    for name in COUNTS:
        self._counts[name][0] = max(0, self._counts[name][0] - 1) if position else self._counts[name][0]
    return finished


OWN_BEGIN = OrtStates.begin


@pytest.mark.parametrize("counted", [_one_more_is_certain, _one_fewer_counts])
@pytest.mark.parametrize("form", FAST, ids=" in ".join)
def test_a_commit_that_is_off_by_one_is_found(
    form: Form, counted: Callable[[OrtStates, int, int, bool], int], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OrtStates, "begin", counted)
    with pytest.raises(ProofError, match=r"between the quantized layers"):
        make(form).prove()


@pytest.mark.parametrize("form", FORMS, ids=" in ".join)
def test_rows_have_the_same_bits_in_passes_of_any_width(form: Form, make: Make) -> None:
    """With drafts that are rejected at every place: plain decoding is verification, bit for bit."""
    draw, widest = random.Random(0), CONTRACT.widest_step
    ours, plain = make(form).decoder(), make(form).decoder()
    kinds = {node.op_type for node in ir.load(make(form).path).graph}
    assert kinds.isdisjoint(("Cos", "Sin", "Softplus"))  # their kernels treat the end of an array otherwise
    for _ in range(3):
        tokens = [draw.randrange(VOCAB) for _ in range(draw.randint(2, 20))]
        for part in (ours, plain):
            part.feed(tokens[:-1], 0)
        while len(tokens) + widest < CONTRACT.capacity:
            position, width = len(tokens) - 1, draw.randint(1, widest)
            behind = [draw.randrange(VOCAB) for _ in range(width)]
            found = ours.step([tokens[-1], *behind[:-1]], position).copy()
            accepted = draw.randrange(width)
            ours.overwrite_rows(position + accepted + 1, 1e4)
            for row in range(accepted + 1):
                np.testing.assert_array_equal(plain.step([tokens[-1]], position + row)[0], found[row])
                tokens.append(behind[row])


def test_prompts_in_other_chunks_leave_the_same_states(make: Make) -> None:
    ours, plain = make(FAST[0]).decoder(), make(FAST[0]).decoder()
    tokens = [random.Random(1).randrange(VOCAB) for _ in range(30)]
    ours.feed(tokens[:16], 0)
    ours.feed(tokens[16:29], 16)
    for position, token in enumerate(tokens[:29]):
        plain.step([token], position)
    np.testing.assert_array_equal(ours.step(tokens[29:], 29), plain.step(tokens[29:], 29))


def test_a_decoder_of_two_threads_gives_the_same_bits(make: Make) -> None:
    made = make(FAST[0])
    one, two = (OrtDecoder(made.path, made.subject.spec, CONTRACT, options=DecoderOptions(count)) for count in (1, 2))
    tokens = list(range(5, 21))
    for decoder in (one, two):
        decoder.feed(tokens, 0)
    np.testing.assert_array_equal(one.step([7, 8, 9], 16), two.step([7, 8, 9], 16))
