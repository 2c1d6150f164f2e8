"""What a checkpoint says of generating: `generation_config.json`, by which transformers' `generate` works.

Its settings become defaults of the bundle where requests have the same, else the build names them as left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ...bundle import Defaults
from ...errors import CheckpointError, ParameterError
from ...runtime.sampling.parameters import SamplingParameters
from .source import first_line

GENERATION = "generation_config.json"
LONGEST_SHOWN = 40
# Of `generate` with `do_sample`; greedy decoding ignores them.
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
# Values with which a setting changes nothing; for all settings also null, false, and what is empty.
NEUTRAL: dict[str, object] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "num_beams": 1,
    "num_return_sequences": 1,
}
# Token ids that are read elsewhere, settings of beams and of drafts, of how outputs are returned, and of memory and
# speed. renormalize_logits and remove_invalid_values change no choice among finite logits.
WITHOUT_EFFECT = frozenset(
    (
        *("transformers_version", "_from_model_config", "_commit_hash", "is_assistant"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
        *("early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty"),
        *("low_memory", "renormalize_logits", "remove_invalid_values"),
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("use_cache", "max_cache_len", "compile_config", "disable_compile", "prefill_chunk_size"),
        "continuous_batching_config",
    )
)
APPLIED = ("repetition_penalty", "suppress_tokens", "bad_words_ids", "min_new_tokens", "stop_strings")
EXACT_CACHES = ("dynamic", "static", "offloaded", "offloaded_static", "sliding_window", "hybrid")


def read_generation_config(source: str, folder: Path) -> dict[str, Any]:
    """Its settings; without the file those in config.json, as old checkpoints have them. Raises `CheckpointError`."""
    path = folder / GENERATION
    try:
        if path.is_file():
            GenerationConfig.from_pretrained(folder)
            return dict(json.loads(path.read_bytes()))
        settings = json.loads((folder / "config.json").read_bytes())
    except Exception as error:  # transformers raises ValueError, OSError and its own
        raise CheckpointError(f"{source}: {path.name} cannot be used: {first_line(error)}") from None
    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    text = settings.get("text_config")
    settings = (text if isinstance(text, dict) else {}) | settings
    return {name: value for name, value in settings.items() if name in known}


def defaults_of(source: str, settings: dict[str, Any]) -> Defaults:
    """What requests have that do not say. Raises `CheckpointError` for values that no setting can have."""
    settings = {name: value for name, value in settings.items() if not _neutral(name, value)}
    try:
        bans, longer = _bans(settings)
        chosen = SamplingParameters(
            max_new_tokens=2**31,
            repetition_penalty=settings.get("repetition_penalty"),
            banned_tokens=bans,
            min_new_tokens=settings.get("min_new_tokens"),
            stop=settings.get("stop_strings"),
        )
    except (ParameterError, TypeError) as error:
        raise CheckpointError(f"{source}: {GENERATION} cannot be used: {first_line(error)}") from None
    left_out = [f"bad_words_ids {_short(longer)}"] if longer else []
    others = settings.keys() - {*APPLIED, *SAMPLING} - WITHOUT_EFFECT
    return Defaults(
        repetition_penalty=chosen.repetition_penalty or 1.0,
        banned_tokens=tuple(chosen.banned_tokens or ()),
        min_new_tokens=chosen.min_new_tokens or 0,
        stop=tuple(chosen.stop or ()),
        sampling=tuple(f"{name} {_short(settings[name])}" for name in SAMPLING if name in settings),
        left_out=(*left_out, *(f"{name} {_short(settings[name])}" for name in sorted(others))),
    )


def _neutral(name: str, value: Any) -> bool:
    if name == "cache_implementation" and value in EXACT_CACHES:  # a quantized one changes the output
        return True
    if value is None or value is False or value in ("", [], {}):
        return True
    return name in NEUTRAL and value == NEUTRAL[name]


def _bans(settings: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Tokens that are never to be generated, and sequences of several tokens. As in transformers, a bad word that is a
    token that ends the text is none.
    """
    ends = settings.get("eos_token_id")
    words, suppressed = settings.get("bad_words_ids", []), settings.get("suppress_tokens", [])
    if not isinstance(suppressed, list):
        raise ParameterError(f"suppress_tokens is {_short(suppressed)}; it must be a list of token ids")
    if not isinstance(words, list) or not all(isinstance(word, list) and word for word in words):
        raise ParameterError(
            f"bad_words_ids is {_short(words)}; it must be a list of lists of token ids", "bad_words_ids"
        )
    alone = [[end] for end in (ends if isinstance(ends, list) else [ends])]
    kept = [word for word in words if word not in alone]
    single = [word[0] for word in kept if len(word) == 1]
    return [*dict.fromkeys([*suppressed, *single])], [word for word in kept if len(word) > 1]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
