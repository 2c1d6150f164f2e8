"""How many of a draft's tokens the target would keep: which of several readings is right, and what a build notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...bundle import KEEPS, LAST, WARNING
from ..weights.fidelity import BATCH_TOKENS, calibration_tokens, split
from .base import HiddenDraft
from .block import BlockDraft, BlockForm
from .eagle3 import Eagle3Draft, Eagle3Form

Form: TypeAlias = Eagle3Form | BlockForm
POSITIONS = 2  # of a head: what goes back is seen in the second
# By how many standard errors another reading must give more tokens per round, and how many times as many: a round costs
# the same in each, so that the speed rises as much.
SURE, WORTH = 3.0, 1.01


def held_out(tokenizer: Any, texts: Sequence[str], vocab_size: int, longest: int = BATCH_TOKENS) -> list[Tensor]:
    """At most a thousand tokens of `texts`, `[1, T]` each: those that quantization is judged on, so that the target
    reads them once.
    """
    held = split(calibration_tokens(tokenizer, texts, longest))[1]
    return [tokens for tokens in held if int(tokens.max()) < vocab_size]


@torch.no_grad()
def acceptance(model: HiddenDraft, texts: Sequence[Tensor], forms: Sequence[Form]) -> list[Tensor]:
    """By form `[positions, places]`: the probability that the target keeps a draft token, at temperature 1 the sum of
    min(target, draft) (arXiv 2211.17192, corollary 3.6). Tokens before it are the text's own.

    texts: `[1, T]` each. forms: of the model, whose weights are the same in all; none for one that has none.
    """
    own, kept = model.form, list[list[Tensor]]([] for _ in forms or (None,))
    for text in texts:
        states, logits = model.watch_target(text)
        target_probs = torch.softmax(logits[0, 1:].float(), -1)  # [T - 1, vocab], of the token after each of the text
        if model.target_ids is not None:
            target_probs = target_probs[:, model.target_ids]
        for found, form in zip(kept, forms or (own,), strict=True):
            model.read_as(form)
            taps = model.taps if form is None else form.taps
            read = model.read_target(text) if model.caches else torch.cat([states[tap] for tap in taps], -1)
            hidden = model.fuse(read.to(model.dtype))
            found.append(_kept(model, text, hidden, target_probs))
    model.read_as(own)
    return [torch.cat(found, 1) for found in kept]


def _kept(model: HiddenDraft, text: Tensor, hidden: Tensor, target_probs: Tensor) -> Tensor:
    """`[positions, places]` of one text."""
    if isinstance(model, Eagle3Draft):
        rows = max(text.shape[1] - POSITIONS, 0)
        steps = enumerate(model.lm_head(read)[0] for read in model.drafted(text, hidden[:, :rows], POSITIONS))
        return torch.stack([_overlap(logits, target_probs[step : step + rows]) for step, logits in steps])
    shares = _overlap(model(text, hidden).logits[0, :-1], target_probs)
    slots = model.form.slots if isinstance(model, BlockDraft) else 1
    return shares[: len(shares) // slots * slots].view(-1, slots).T


def _overlap(logits: Tensor, target_probs: Tensor) -> Tensor:
    return torch.minimum(torch.softmax(logits.float(), -1), target_probs).sum(-1)


def acceptance_notes(model: HiddenDraft, texts: Sequence[Tensor]) -> tuple[str, ...]:
    """What the target keeps, and how the draft is read; a warning where a reading close to that is better."""
    form = model.form
    forms = (
        ()
        if form is None
        else (form, *neighbours(form, model.__dict__["_target"].config.get_text_config().num_hidden_layers))
    )
    texts = [text for text in texts if text.shape[1] > POSITIONS]
    own, *others = acceptance(model, texts, forms) if texts else [torch.zeros(0, 0)]
    if not own.numel() or not own.isfinite().all():  # as of a target that overflows in half precision
        return ()
    note = f"{KEEPS} {shares(own)} of draft tokens 1 to {len(own)} of held-out texts at temperature 1, unquantized"
    if form is None:
        return (note,)
    better = {other: found for other, found in zip(forms[1:], others, strict=True) if _is_better(found, own)}
    best = max(better, key=lambda other: float(_tokens(better[other]).mean()), default=None)
    read = f"read with {options(form)}"
    if best is None:
        return (note, read)
    told = f"{WARNING}{options(best)} would keep {shares(better[best])}; check config.json, or build again with them"
    return (note, read, told)


def shares(found: Tensor) -> str:
    """found: as of `acceptance`."""
    return ", ".join(f"{float(share):.1%}" for share in found.mean(1))


def options(form: Form) -> str:
    """What reads it like that."""
    taps = f"--draft-taps {','.join(map(str, form.taps))}"
    if not isinstance(form, Eagle3Form):
        return taps
    base = f" and rope_theta {form.theta:g} in config.json" if form.theta else ""
    return f"{taps} --draft-feedback {form.feedback}{base}"


def neighbours(form: Form, layers: int) -> tuple[Form, ...]:
    """How else a wrong config may have been meant: the layers before or after, in another order, another feedback.

    layers: of the target.
    """
    moved = [tuple(tap + step for tap in form.taps) for step in (1, -1)] + [form.taps[::-1]]
    taps = [one for one in moved if LAST not in form.taps and min(one) >= 0 and max(one) < layers]
    others: list[Form] = [replace(form, taps=one) for one in taps if one != form.taps]
    if isinstance(form, Eagle3Form):
        others.append(replace(form, feedback="pre" if form.feedback == "post" else "post"))
    return tuple(others)


def _tokens(found: Tensor) -> Tensor:
    """By place how many tokens a round is expected to give, of a draft of the positions that were measured."""
    return 1 + found.cumprod(0).sum(0)


def _is_better(other: Tensor, own: Tensor) -> bool:
    """Surely, and by enough that it is noticed."""
    gains = _tokens(other) - _tokens(own)
    least = max(SURE * float(gains.std()) / math.sqrt(len(gains)), (WORTH - 1) * float(_tokens(own).mean()))
    return float(gains.mean()) > least
