"""`generate` with the interface of transformers' models, over a session: takes ids, returns prompt and output."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from ...errors import ParameterError
from ...runtime.load import load
from ...runtime.sampling.options import instance, whole_number
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session

# transformers' own defaults without a generation config.
MAX_NEW_TOKENS = 20
TOP_K = 50
# Options of `generate` that have another name in a session.
RENAMED = {"eos_token_id": "stop_token_ids", "num_assistant_tokens": "num_draft_tokens"}
SAME = {field.name for field in fields(SamplingParameters)} - {"logprobs", "prompt_logprobs", "shown"}
# Options without effect here: one sequence without padding, with a cache.
IGNORED = ("pad_token_id", "use_cache", "return_dict_in_generate", "num_beams", "num_return_sequences")
SINGLE = {"num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}


class Streamer(Protocol):
    """A streamer of transformers: `TextStreamer`, `TextIteratorStreamer`. Values are of the type of the given ids."""

    def put(self, value: Any) -> None: ...

    def end(self) -> None: ...


class CompiledCausalLM:
    """Replaces a transformers model and its assistant in `generate`: one sequence at a time, greedy unless `do_sample`.

    The bundle's defaults from the checkpoint's generation config (`specexport inspect`) apply here too.
    """

    device = "cpu"  # of the ids that `generate` takes, whatever device the engine runs on

    def __init__(self, session: Session) -> None:
        self.session = instance("session", session, Session)

    @classmethod
    def from_pretrained(cls, bundle: str | os.PathLike[str], **options: Any) -> CompiledCausalLM:
        """Load the bundle at this path. options, errors: those of `specexport.load`."""
        return cls(load(bundle, **options))

    def generate(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        inputs: Any = None,
        do_sample: bool = False,
        max_length: int | None = None,
        streamer: Streamer | None = None,
        **options: Any,
    ) -> Any:
        """Prompt and output, `[1, length] int64`: a torch tensor if `input_ids` is one, else a numpy array.

        input_ids: `[1, length]` or `[length]`, of torch, numpy or lists. attention_mask: all ones. options: those that
        transformers' `generate` shares with `SamplingParameters`, and the latter's own. Sampling without a `seed` is
        different each time; torch's generator is not used. Raises `ParameterError` for more than one sequence, for
        padding and for options that a session does not have, and what `Session.generate` raises.
        """
        given = input_ids if input_ids is not None else inputs
        prompt = _only_sequence(given)
        if attention_mask is not None and not np.asarray(attention_mask).all():
            raise ParameterError("attention_mask has zeros; give one sequence without padding", "attention_mask")
        chosen = _stream_options(options, do_sample)
        if max_length is not None and "max_new_tokens" not in chosen:
            chosen["max_new_tokens"] = _room(whole_number("max_length", max_length), len(prompt))
        tokens = list(prompt)
        with self.session.stream(prompt, **{"max_new_tokens": MAX_NEW_TOKENS} | chosen) as stream:
            if streamer is not None:
                streamer.put(_like(given, [tokens]))
            for chunk in stream:
                tokens += chunk.tokens
                if streamer is not None and chunk.tokens:
                    streamer.put(_like(given, list(chunk.tokens)))
        if streamer is not None:
            streamer.end()
        return _like(given, [tokens])


def _room(max_length: int, prompt_tokens: int) -> int:
    if max_length <= prompt_tokens:
        raise ParameterError(
            f"max_length is {max_length}, and the prompt has {prompt_tokens} tokens; give more, or max_new_tokens",
            "max_length",
        )
    return max_length - prompt_tokens


def _only_sequence(given: Any) -> list[int]:
    if given is None:
        raise ParameterError("generate got no input_ids; pass a prompt's, as the tokenizer returns them", "input_ids")
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        raise ParameterError("input_ids are no array; a session takes one sequence, [1, length]", "input_ids") from None
    if array.size and array.dtype.kind not in "iu":
        raise ParameterError(
            f"input_ids are of type {array.dtype}; give token ids, which are whole numbers", "input_ids"
        )
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 1:
        raise ParameterError(
            f"input_ids have the shape {list(array.shape)}; a session takes one sequence, [1, length]", "input_ids"
        )
    return [int(token) for token in array]


def _stream_options(options: dict[str, Any], do_sample: bool) -> dict[str, Any]:
    """`options` as keywords of `Session.stream`. Raises `ParameterError`."""
    if options.get("assistant_model") is not None:
        raise ParameterError(
            "assistant_model is given, but a bundle contains its draft; build it with specexport build --draft",
            "assistant_model",
        )
    for name, only in SINGLE.items():
        if options.get(name, only) != only:
            raise ParameterError(f"{name} is {options[name]}; a session returns one sequence, as an array of ids", name)
    chosen = {RENAMED.get(name, name): value for name, value in options.items() if value is not None}
    chosen = {name: value for name, value in chosen.items() if name not in (*IGNORED, "assistant_model")}
    if unknown := sorted(chosen.keys() - SAME):
        raise ParameterError(
            f"generate does not support {', '.join(unknown)} here; it takes {', '.join(sorted(SAME))}", unknown[0]
        )
    if not do_sample:
        return {name: value for name, value in chosen.items() if name not in ("temperature", "top_k", "top_p", "min_p")}
    return {"temperature": 1.0, "top_k": TOP_K} | chosen


def _like(given: Any, tokens: Any) -> Any:
    """`tokens` as an int64 array: a torch tensor if `given` is one, else numpy."""
    if type(given).__module__.partition(".")[0] == "torch":
        import torch

        return torch.tensor(tokens)
    return np.array(tokens, np.int64)
