"""`CompiledCausalLM.generate` against transformers' own `generate` with an assistant, on the pair of the bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Pair
from specexport.errors import ParameterError
from specexport.integrations.transformers import CompiledCausalLM
from support.refusals import refused
from transformers import AutoModelForCausalLM

PROMPT = [[3, 14, 15, 9, 26]]


@pytest.fixture(scope="module")
def model(built: Path) -> Iterator[CompiledCausalLM]:
    made = CompiledCausalLM.from_pretrained(built, engine="onnxruntime")
    with made.session:
        yield made


class Heard:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: Any) -> None:
        assert isinstance(value, torch.Tensor)
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_the_output_is_that_of_transformers_with_an_assistant(model: CompiledCausalLM, pair: Pair) -> None:
    target, draft = (AutoModelForCausalLM.from_pretrained(path) for path in (pair.target, pair.draft))
    prompt, heard = torch.tensor(PROMPT), Heard()
    asked = dict(max_new_tokens=20, do_sample=False, pad_token_id=0)
    wanted = target.generate(prompt, attention_mask=torch.ones_like(prompt), assistant_model=draft, **asked)
    found = model.generate(
        input_ids=prompt.to(model.device), attention_mask=torch.ones_like(prompt), streamer=heard, **asked
    )
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.int64
    assert found.tolist() == wanted.tolist()
    assert heard.tokens == found[0].tolist()
    assert heard.ended


def test_arrays_stay_numpy_s_and_lengths_are_kept(model: CompiledCausalLM) -> None:
    found = model.generate(np.array(PROMPT[0]), max_length=9, eos_token_id=[])
    assert isinstance(found, np.ndarray)
    assert found.shape == (1, 9)
    assert model.generate(inputs=PROMPT, eos_token_id=[]).shape == (1, 25)  # transformers' default of 20
    stop = int(found[0, 6])
    assert model.generate(PROMPT, eos_token_id=stop)[0, -1] == stop


def test_sampling_is_asked_for_and_takes_transformers_defaults(model: CompiledCausalLM) -> None:
    plain = model.session.generate(PROMPT[0], max_new_tokens=8, temperature=1.0, top_k=50, seed=3)
    found = model.generate(PROMPT, do_sample=True, seed=3, max_new_tokens=8)
    assert found[0, 5:].tolist() == list(plain.tokens)
    best = model.generate(PROMPT, do_sample=True, seed=3, max_new_tokens=8, top_k=1)
    assert best.tolist() == model.generate(PROMPT, max_new_tokens=8).tolist()
    greedy = model.generate(PROMPT, temperature=0.9, top_p=0.5, max_new_tokens=8)  # without do_sample, no sampling
    assert greedy.tolist() == model.generate(PROMPT, max_new_tokens=8).tolist()


def test_a_request_s_own_options_are_taken_but_for_what_ids_do_not_show(model: CompiledCausalLM) -> None:
    options: dict[str, Any] = dict(max_new_tokens=8, presence_penalty=2.0, frequency_penalty=2.0, prediction=[3, 14])
    wanted = model.session.generate(PROMPT[0], **options).tokens
    assert model.generate(PROMPT, **options)[0, 5:].tolist() == list(wanted)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (None, {}),
        ([[1, 2], [3, 4]], {}),
        (PROMPT, {"attention_mask": [[0, 1, 1, 1, 1]]}),
        (PROMPT, {"assistant_model": "draft"}),
        (PROMPT, {"num_beams": 4}),
        (PROMPT, {"stopping_criteria": []}),
        (PROMPT, {"max_length": len(PROMPT[0])}),
        (PROMPT, {"max_length": "9"}),
        ([[1, 2], [3]], {}),
        ([[1.5, 2.0]], {}),
    ],
    ids=["nothing", "batch", "padding", "assistant", "beams", "unknown", "no room", "no number", "ragged", "fractions"],
)
def test_what_a_session_does_not_have_is_refused(model: CompiledCausalLM, prompt: Any, options: dict[str, Any]) -> None:
    with refused(
        ParameterError,
        field=next(iter(options), "input_ids"),
    ):
        model.generate(prompt, **options)


def test_a_path_is_no_session() -> None:
    with refused(ParameterError, "my.bundle", field="session"):
        CompiledCausalLM("my.bundle")  # type: ignore[arg-type]
