"""Which tokens the draft's output layer keeps: counted in the target's own answers, judged on answers held out.

Whether a smaller output layer pays: the time that it saves per round against the accepted tokens that it loses.

The order in which tokens are kept: those that every draft needs, then by frequency.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..bundle import ELEMENT_BYTES, DraftVocabulary, Role
from ..errors import PairError, ParameterError
from ..strict import parse, read_json
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.half_precision import fp32_arithmetic
from .checkpoints.shared_vocabulary import Tokens
from .memory import require_memory
from .options import BuildContext, CalibrationTexts
from .stage_cache import finished_stage, make_stage, stage_key
from .target_answers import ANSWER_TOKENS, AT_ONCE, Accepted, accepted, own_answers

# What one more row costs a verification pass, of a pass of width 1. An estimate for `auto` alone, from CPUs and GPUs
# of docs/benchmarks.md; `specexport calibrate` measures it.
ROW = 0.1


def share_of_head(draft: PreTrainedModel) -> float:
    """The output layer's fraction of the weights that a pass of the draft reads."""
    head, table = draft.get_output_embeddings().weight, draft.get_input_embeddings().weight
    picked = 0 if head is table else table.numel()  # a pass reads one row of it
    return float(head.numel() / (draft.num_parameters() - picked))


def pays(rates: tuple[float, float], relative: float, saved: float, num_draft_tokens: int) -> bool:
    """rates: the chance of a draft token with the kept ids and with all. relative: the draft's size, of the target's.

    saved: the part of a draft pass. Rounds are of num_draft_tokens, passes take as long as their weights are large.
    """
    verify = 1 + ROW * num_draft_tokens
    cut = _pass_over(rates[0], num_draft_tokens) / (num_draft_tokens * relative * (1 - saved) + verify)
    whole = _pass_over(rates[1], num_draft_tokens) / (num_draft_tokens * relative + verify)
    return cut > whole


def _pass_over(rate: float, num_draft_tokens: int) -> float:
    """Tokens per round, the target's own included (Leviathan et al. 2023, arXiv 2211.17192, equation 1)."""
    return sum(rate**place for place in range(num_draft_tokens + 1))


# Of held-out answers, what `auto` keeps. Acceptance is at most the kept part of the target's probability, so it may
# lose one point; published: 4 k, 8 k and 16 k of 128 k tokens cover 94, 97 and 99 % (arXiv 2605.10453).
COVERAGE = 0.99


def required_tokens(target: Checkpoint, tokens: Tokens, size: int) -> set[int]:
    """Stop tokens, single bytes and digits, of the `size` that the draft has logits for.

    A text that leaves the kept tokens goes on by bytes; an end or a number is never out of a draft's reach.
    """
    alone = {token for token, value in tokens.text.items() if len(value) == 1 or value.strip().isdigit()}
    return {token for token in (*target.stop_token_ids, *alone) if token < size}


def ranked(required: set[int], counts: Sequence[Counter[int]], size: int) -> list[int]:
    """All `size` ids: the required ones, then by how often they come in the first of the counts, then in the next.

    Tokens in none of the counts are ordered by id: tokenizers mostly number their tokens by how early they were merged.
    """

    def place(token: int) -> tuple[int, ...]:
        return (token not in required, *(-count[token] for count in counts), token)

    return sorted(range(size), key=place)


def coverage(kept: Iterable[int], tokens: Sequence[int]) -> float:
    """The fraction of `tokens` that is among `kept`."""
    known = set(kept)
    return sum(token in known for token in tokens) / max(len(tokens), 1)


def smallest(order: Sequence[int], tokens: Sequence[int], least: int) -> int:
    """How many of `order` must be kept, `least` or more, so that they are `COVERAGE` of `tokens`."""
    place = {token: index for index, token in enumerate(order)}
    places = sorted(place.get(token, len(order)) for token in tokens)
    needed = places[min(len(places) - 1, -(-int(COVERAGE * 1000) * len(places) // 1000) - 1)] + 1 if places else least
    return max(least, min(needed, len(order)))


# Prompts that are continued, and the last tokens of each that are read.
MAX_PROMPTS = 64
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
    key = stage_key(__file__, stage=LABEL, models=digests, asked=asked, texts=asdict(texts), contract=asdict(contract))
    stage = finished_stage(context.cache, key)
    if stage is not None:
        progress.reused(LABEL)
    else:
        parameters = (target.fp32_bytes + draft.fp32_bytes) // ELEMENT_BYTES["fp32"]
        require_memory(parameters, contract.precision, quantized=False)
        with progress.stage(LABEL, -(-min(len(texts.texts), MAX_PROMPTS) // AT_ONCE) + 1) as step:

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
    return read[:: max(1, -(-len(read) // MAX_PROMPTS))]
