"""Which tokens the draft's output layer keeps: counted in the target's own answers, judged on answers held out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ...bundle import ELEMENT_BYTES, DraftVocabulary, Role
from ...errors import PairError, ParameterError
from ...strict import parse, read_json
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.half_precision import fp32_arithmetic
from ..checkpoints.memory_check import require_memory
from ..checkpoints.shared_vocabulary import Tokens
from ..context import BuildContext
from ..request.options import CalibrationTexts
from ..storage.stage_cache import finished_stage, make_stage, stage_key
from .agreement import Accepted, accepted
from .answers import ANSWER_TOKENS, AT_ONCE, own_answers
from .ranking import coverage, ranked, required_tokens, smallest
from .worth import pays, share_of_head

# Prompts that are continued, and the last tokens of each that are read.
MOST_PROMPTS = 64
PROMPT_TOKENS = 128
# One prompt in this many is held out of the counts.
EVERY = 5
LABEL = "draft vocabulary"
FILE = "vocabulary.json"

Chosen = tuple[tuple[int, ...], DraftVocabulary | None, str]


def check_vocabulary(
    models: Mapping[Role, Checkpoint], asked: int | None, translated: bool, texts: CalibrationTexts
) -> None:
    """Checks that need no loaded model. asked: the number of tokens, None for `auto`.

    Raises `ParameterError`, and `PairError` for a draft of another tokenizer.
    """
    given = "auto" if asked is None else str(asked)
    if translated:
        raise PairError(
            f"--draft-vocabulary is {given}, but the draft has another tokenizer, whose shared tokens are all that it "
            "can propose; leave it out"
        )
    size = _size(models)
    if asked is not None and asked > size:
        raise ParameterError(
            f"--draft-vocabulary is {asked}; the models have {size} tokens; give fewer, or auto", "draft_vocabulary"
        )
    least = len(required_tokens(models["target"], _tokens(models["target"]), size))
    if asked is not None and asked < least:
        raise ParameterError(
            f"--draft-vocabulary is {asked}; stop tokens, single bytes and digits alone take {least}; give more, "
            "or auto",
            "draft_vocabulary",
        )
    if len(texts.texts) < EVERY:
        raise ParameterError(
            f"--draft-vocabulary is judged on one calibration prompt in {EVERY}, and there are {len(texts.texts)}; "
            "give more, or leave out --calibration-prompts to use the built-in set",
            "draft_vocabulary",
        )


def choose_vocabulary(
    target: Checkpoint, draft: Checkpoint, asked: int | None, texts: CalibrationTexts, context: BuildContext
) -> Chosen:
    """(the kept ids in rising order, what that costs, a line that says so); without costs, all tokens are kept.

    asked: the number of tokens, None for the smallest with `COVERAGE`, or all where that does not pay.
    """
    contract, progress = context.contract, context.progress
    digests = [target.digest, draft.digest, target.tokenizer.backend_tokenizer.to_str(), list(target.stop_token_ids)]
    key = stage_key(stage=LABEL, models=digests, asked=asked, texts=asdict(texts), contract=asdict(contract))
    stage = finished_stage(context.cache, key)
    if stage is not None:
        progress.reused(LABEL)
    else:
        parameters = (target.fp32_bytes + draft.fp32_bytes) // ELEMENT_BYTES["fp32"]
        require_memory(parameters, contract.precision, quantized=False)
        with progress.stage(LABEL, -(-min(len(texts.texts), MOST_PROMPTS) // AT_ONCE) + 1) as step:

            def make(folder: Path) -> None:
                chosen = _choose(target, draft, asked, texts, context, step)
                (folder / FILE).write_text(json.dumps(chosen), encoding="utf-8")

            stage = make_stage(context.cache, key, make)
    found = read_json(stage / FILE)
    told = None if found["told"] is None else parse(DraftVocabulary, found["told"], FILE)
    return tuple(found["kept"]), told, found["note"]


def _choose(
    target: Checkpoint,
    draft: Checkpoint,
    asked: int | None,
    texts: CalibrationTexts,
    context: BuildContext,
    step: Callable[[str], None],
) -> dict[str, Any]:
    size, tokens = _size({"target": target, "draft": draft}), _tokens(target)
    read = [list(target.tokenizer(text, verbose=False)["input_ids"]) for text in texts.texts]
    read = _evenly([one for one in read if one])
    length = max(1, min(PROMPT_TOKENS, context.contract.capacity - ANSWER_TOKENS))
    # Of a long text the first part is the prompt, so that the rest is counted as text of its kind.
    prompts = [one[: min(length, max(1, len(one) // 2))] if not texts.own else one[-length:] for one in read]
    models = [one.load(context.contract.precision) for one in (target, draft)]
    with fp32_arithmetic(models[0]), fp32_arithmetic(models[1]):
        answers = own_answers(models[0], prompts, target.stop_token_ids, step)
        held = [answer for answer in answers[EVERY - 1 :: EVERY] if answer[1]]
        counted = [answer for place, answer in enumerate(answers) if place % EVERY != EVERY - 1]
        others = [one for place, one in enumerate(read) if place % EVERY != EVERY - 1]
        counts = Counter(token for _, answer in counted for token in answer), Counter(t for one in others for t in one)
        required = required_tokens(target, tokens, size)
        order = ranked(required, counts, size)
        judged = [token for _, answer in held for token in answer]
        number = smallest(order, judged, len(required)) if asked is None else asked
        if number >= size:
            reason = "held-out answers need them" if asked is None else "so many were asked for"
            return dict(kept=[], told=None, note=f"the draft keeps all {size} tokens: {reason}")
        step("acceptance")
        kept = sorted(order[:number])
        cut, whole = accepted(models[0], models[1], held, kept)
    told = DraftVocabulary(
        kept_tokens=number,
        all_tokens=size,
        counted_tokens=sum(counts[0].values()),
        held_out_tokens=len(judged),
        own_texts=texts.own,
        coverage=coverage(kept, judged),
        agreement=cut.agreement,
        whole_agreement=whole.agreement,
        acceptance=cut.acceptance,
        whole_acceptance=whole.acceptance,
    )
    if asked is None and not _pays(models, (cut, whole), 1 - number / size, context):
        note = f"the draft keeps all {size} tokens: {number} would lose more accepted tokens than they save time"
        return dict(kept=[], told=None, note=note)
    return dict(kept=kept, told=asdict(told), note=f"the draft can propose {number} of {size} tokens")


def _pays(
    models: Sequence[PreTrainedModel], rates: tuple[Accepted, Accepted], dropped: float, context: BuildContext
) -> bool:
    target, draft = models
    relative = draft.num_parameters() / target.num_parameters()
    saved = share_of_head(draft) * dropped
    cut, whole = rates
    return pays((cut.agreement, whole.agreement), relative, saved, context.contract.max_draft_tokens)


def _size(models: Mapping[Role, Checkpoint]) -> int:
    """Tokens that both models have logits for."""
    return min(int(model.config.get_text_config().vocab_size) for model in models.values())


def _tokens(target: Checkpoint) -> Tokens:
    return Tokens(json.loads(target.tokenizer.backend_tokenizer.to_str()), {})


def _evenly(read: list[list[int]]) -> list[list[int]]:
    return read[:: max(1, -(-len(read) // MOST_PROMPTS))]
