"""The reference of drafts that read hidden states of the target, and the proof of those that its graph gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel

from ...bundle import Contract
from ...engines.onnxruntime.blocks import OrtBlockDecoder
from ...engines.onnxruntime.decoder import OrtDecoder
from ...errors import ProofError
from ...runtime.proofs.parity import LOGIT_TOLERANCE, Exact, ReferenceStep, Step, contexts, schedule
from ..checkpoints.half_precision import cached_as, fp32_arithmetic
from ..hidden_drafts.assistant import Assistant
from ..hidden_drafts.base import HiddenDraft, hidden_states, last_logits
from ..hidden_drafts.block import BlockDraft
from ..tracing.probe import cache_argument
from ..tracing.taps import Undo

Floats = NDArray[np.float32]
T = TypeVar("T")
# Drafted tokens that end the proof of a draft that reads hidden states: rows that read what the one before gave back.
DRAFTED = 2
# Rows of a target's hidden states that are compared, of a longer first pass all.
TAPPED = 512


def by_contexts(steps: Sequence[Step], read: Callable[[NDArray[np.int64], list[Step]], Iterable[T]]) -> list[T]:
    """Of each step what `read` gives. Steps whose sequences begin alike need one forward pass, over the longest: `read`
    gets this sequence, and those steps.
    """
    shared: list[tuple[NDArray[np.int64], list[int]]] = []
    for number, context in enumerate(contexts(list(steps))):
        for place, (longest, group) in enumerate(shared):
            common = min(len(longest), len(context))
            if np.array_equal(longest[:common], context[:common]):
                shared[place] = max(longest, context, key=len), [*group, number]
                break
        else:
            shared.append((context, [number]))
    found: dict[int, T] = {}
    for context, group in shared:
        found |= zip(group, read(context, [steps[number] for number in group]), strict=True)
    return [found[number] for number in range(len(steps))]


def cached_passes(model: PreTrainedModel, steps: Sequence[Step], **options: Any) -> Iterator[Any]:
    """Of each step what the model gives for its rows, over the library's own cache. options: of the model's forward."""
    cache = DynamicCache()
    options |= {cache_argument(model): cache, "use_cache": True}
    for step in steps:
        for layer in cache.layers:
            if layer.is_initialized:  # not by its own `crop`, whose meaning changed within transformers 5
                layer.keys, layer.values = (half[..., : step.position, :] for half in (layer.keys, layer.values))
        with torch.no_grad():
            output = model(input_ids=torch.from_numpy(step.tokens)[None], **options)
        yield output


def reading_reference(model: HiddenDraft, contract: Contract, text: Sequence[int]) -> list[ReferenceStep]:
    """Of a draft that reads hidden states: the target's own at every step, and then of drafted tokens.

    Far out only what windows need, since the hidden states are part of the bundle.
    """
    widest = contract.widest_step
    chunk, capacity = min(contract.prompt_chunk, 4 * widest), min(contract.capacity, 16 * widest)
    short = replace(contract, prompt_chunk=chunk, capacity=capacity)
    size = model.embed_tokens.num_embeddings
    # A block's pass gives the logits of its first slot alone.
    block = model if isinstance(model, BlockDraft) else None
    drafted_tokens = block.form.slots - 1 if block else DRAFTED

    def read(context: NDArray[np.int64], group: list[Step]) -> Iterator[Step]:
        hidden = model.read_target(torch.from_numpy(context)[None])[0].float().numpy()
        for step in group:
            rows = min(step.rows, 1) if block else step.rows
            yield replace(step, rows=rows, hidden=hidden[step.position : step.end].copy())

    with torch.no_grad(), fp32_arithmetic(model):
        steps = by_contexts(schedule(short, size, spare=drafted_tokens, text=text), read)
        end, draw = steps[-1].end, np.random.default_rng(1)
        drafted = [Step(draw.integers(0, size, 1), end + index, 1) for index in range(drafted_tokens)]
        steps += drafted
    with cached_as(contract):
        steps += _beyond_windows(model, steps, contract.capacity)
        if block:
            return [ReferenceStep(step, *found) for step, found in zip(steps, _block_passes(block, steps), strict=True)]
        return [ReferenceStep(step, logits) for step, logits in zip(steps, reading_passes(model, steps), strict=True)]


def _beyond_windows(model: HiddenDraft, steps: Sequence[Step], capacity: int) -> Iterator[Step]:
    """Rows until the last, or a block, stands behind twice its largest window, where no step of `steps` does.

    Their hidden states are those of the first two steps again, so that they cost no pass of the target and no room: the
    second's within the window, the first's before it.
    """
    window, position = max(model.windows, default=0), 0
    if not max(step.end for step in steps) <= window < capacity:
        return
    end = min(2 * window, capacity)
    while position < end:
        like = steps[0] if position < end - window else steps[1]
        if position + len(like.tokens) > end:
            like = replace(like, tokens=like.tokens[: end - position], hidden=like.hidden[: end - position])  # type: ignore[index]
        yield replace(like, position=position, rows=int(position + len(like.tokens) == end))
        position += len(like.tokens)


def reading_passes(model: HiddenDraft, steps: Sequence[Step]) -> Iterator[Floats]:
    """Of each step the rows that are compared, by passes over all rows before them and without a cache."""
    if isinstance(model, BlockDraft):
        yield from (logits for logits, _ in _block_passes(model, steps))
        return
    tokens, hidden, last = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0), torch.zeros(0, 0)
    with torch.no_grad(), fp32_arithmetic(model):
        for step in steps:
            if isinstance(model, Assistant) and step.hidden is None:
                output = model.drafted(torch.from_numpy(step.tokens)[None], last[None], hidden[None])
                last = output.feedback[0, -1:]
                yield output.logits[0].float().numpy().copy()
                continue
            new = model.fuse(torch.from_numpy(step.hidden)[None])[0] if step.hidden is not None else last
            tokens = torch.cat([tokens[: step.position], torch.from_numpy(step.tokens)])
            hidden = torch.cat([hidden[: step.position], new]) if step.position else new
            if not step.rows:
                yield np.zeros((0, model.lm_head.out_features), np.float32)
                continue
            output = model(input_ids=tokens[None], hidden=hidden[None], logits_to_keep=step.rows)
            last = output.feedback[0, -1:]
            yield output.logits[0].float().numpy().copy()


def _block_passes(model: BlockDraft, steps: Sequence[Step]) -> Iterator[tuple[Floats, Floats | None]]:
    """Logits and confidences. A step with hidden states begins a block after its rows; the others continue the one
    before.
    """
    hidden, slot = torch.zeros(0, 0), 0
    nothing = np.zeros((0, model.lm_head.out_features), np.float32)
    with torch.no_grad(), fp32_arithmetic(model):
        for step in steps:
            before = torch.from_numpy(step.tokens[-1:])
            if step.hidden is not None:
                new = model.fuse(torch.from_numpy(step.hidden)[None])[0]
                hidden, slot = torch.cat([hidden[: step.position], new]) if step.position else new, 0
                if not step.rows:
                    yield nothing, None if model.confidence_head is None else nothing[:, 0]
                    continue
                logits, states = model.blocks(hidden[None], before, torch.tensor([len(hidden)]))
            else:
                slot += 1
            chained, confidence = model.chain(before, states[:, slot], logits[:, slot])
            yield chained.float().numpy().copy(), None if confidence is None else confidence.float().numpy().copy()


@dataclass(frozen=True)
class TapStates:
    """By tap the hidden states `[T, D]` of a step. exact: what they are without the rounding of caches."""

    step: Step
    rounded: list[Floats]
    exact: list[Floats]


def tap_states(
    model: PreTrainedModel,
    taps: Sequence[int],
    undo: Undo,
    steps: Sequence[Step],
    contract: Contract,
    has_states: bool,
) -> list[TapStates]:
    """What transformers tells of the model at each of `steps` near the start. undo: as for `trace`."""
    last = max(TAPPED, steps[0].end)
    near_start = list(takewhile(lambda step: step.end <= last, steps))
    with fp32_arithmetic(model):
        exact = list(_states_at(model, near_start, taps, undo, has_states))
        rounded = exact
        if contract.caches != contract.precision:
            with cached_as(contract):
                rounded = list(_states_at(model, near_start, taps, undo, has_states))
    return [TapStates(*one) for one in zip(near_start, rounded, exact, strict=True)]


def prove_taps(decoder: OrtDecoder | OrtBlockDecoder, expected: Sequence[TapStates], arithmetic: Exact) -> None:
    """Compare the hidden states that the target's graph gives with what is expected. Raises `ProofError`.

    arithmetic: the graph's.
    """
    assert decoder.taps is not None
    allowed, taps = LOGIT_TOLERANCE[arithmetic], decoder.spec.taps
    for one in expected:
        step, wanted, unrounded = one.step, one.rounded, one.exact
        decoder.step(step.tokens.tolist(), step.position)
        ours = np.split(decoder.taps(), len(taps), axis=1)
        for tap, mine, near, far in zip(taps, ours, wanted, unrounded, strict=True):
            row, off, tolerance = furthest(mine, near, far, allowed)
            if not off <= tolerance:
                raise ProofError(
                    f"target: the hidden states at tap {tap}, row {step.position + row}, are {off:.2g} of their "
                    f"largest number off the Hugging Face model's, {tolerance:.0g} is allowed; report this with "
                    "the checkpoint's config.json"
                )


def _states_at(
    model: PreTrainedModel, steps: Sequence[Step], taps: Sequence[int], undo: Undo, has_states: bool
) -> Iterator[list[Floats]]:
    """Of each step the model's hidden states `[T, D]` by tap; where it has_states, by whole passes."""
    if has_states:

        def read(context: NDArray[np.int64], group: list[Step]) -> Iterator[list[Floats]]:
            whole = hidden_states(model, torch.from_numpy(context)[None])
            for step in group:
                yield [undo(tap, whole[tap])[0, step.position : step.end].numpy() for tap in taps]

        yield from by_contexts(steps, read)
        return
    for output in cached_passes(model, steps, output_hidden_states=True, **last_logits(model)):
        yield [undo(tap, output.hidden_states[tap])[0].numpy() for tap in taps]


def furthest(ours: Floats, wanted: Floats, exact: Floats, tolerance: float) -> tuple[int, float, float]:
    """The row `[D]` that is furthest off or beyond what is allowed: its place, how far, and how far it may be.

    By row and as shares of its largest number: some tokens have states a thousand times those of others, and sums round
    by what is largest. exact: what `wanted` is without the rounding of caches, which is allowed too, as in
    `prove_layers`.
    """
    largest = np.abs(wanted).max(1)
    largest = np.where(largest > 0, largest, 1)  # some tokens have embeddings of zeros
    off, allowed = np.abs(ours - wanted).max(1) / largest, tolerance + np.abs(exact - wanted).max(1) / largest
    row = int(np.argmax(off - allowed))  # the first one that is not a number, where one is
    return row, float(off[row]), float(allowed[row])
