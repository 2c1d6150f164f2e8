"""A whole round on the device: k draft passes, a token selected after each, the verify pass, acceptance.

One launch, one wait.

    host -> device   last tokens, positions, noise, sampling parameters
    draft            width 2 over the last two tokens, then width 1 over each new one; `select` after every pass
                     one that reads hidden states: width k + 1 over the rows that it lacks and padding, then width 1
                     over what its last row gave back and each new token
    target           width k + 1 over the last token and the k draft tokens
    accept           how many draft tokens are accepted, and the token that follows
    device -> host   draft tokens, confidences, num_accepted, next_token, next_position; the target's hidden states

What is bound never changes (see `loaded_graph.py`), so data is copied from one to the next: a few bytes, and a row of
probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, Contract
from ...errors import EngineError
from ..base import RoundNoise, RoundResult, check_rows
from .decoder import DeviceDecoder
from .device import Address, CudaDevice
from .loaded_graph import Enqueue
from .pick_row import RowPicker
from .replay import Replay
from .rule_kernels import RuleKernels
from .staging import Page

GREEDY = "greedy"


class DeviceRounds:
    """Implements `Rounds`.

    rules: the loaded verification rules, by their names, e.g. `select`, `accept_block_4`.
    """

    def __init__(
        self,
        device: CudaDevice,
        contract: Contract,
        target: DeviceDecoder,
        draft: DeviceDecoder | None,
        rules: Mapping[str, RuleKernels],
        scratch: Address,
        columns: NDArray[np.int64] | None = None,
    ) -> None:
        """draft: None if there is none, or if its token ids differ from the target's.

        columns: of the logits of a draft that reads hidden states, by the target's ids, negative for tokens that it
        cannot propose; None where they are the same.
        """
        k, vocab_size = contract.max_draft_tokens, target.vocab_size
        self._device, self._contract, self._target, self._draft = device, contract, target, draft
        self._rules, self._scratch = rules, scratch
        self.drafts = draft is not None
        self._inputs = Page(
            device,
            "the rounds' inputs",
            [
                *[(np.int64, k), (np.float32, k), (np.float32, k + 1), (np.float32, 1), (np.float32, 4)],
                *[(np.int64, 1)] * 2,
                *[(np.int64, k)] * (len(COUNTS) if draft is not None and draft.states is not None else 0),
            ],
        )
        self._positions, self._draft_noise, self._noise, *rest = self._inputs.slots
        self._select_noise, self._sampling, *rest = rest
        self._last_row, self._first_row, *self._counts = rest  # _counts: of states, for each of the draft's passes
        self._outputs = Page(
            device,
            "the rounds' outputs",
            [(np.int64, k), (np.float32, k), *[(np.int64, 1)] * 3, *[(np.float32, 1)] * 2],
        )
        self._draft_tokens, self._confidence, *accepted, self._selected, self._last_logit = self._outputs.slots
        self._num_accepted, self._next_token, self._next_position = accepted
        self._row_bytes = 4 * vocab_size
        self._drawn = device.allocate(self._row_bytes, "a token's probabilities")
        self._draft_probs = device.allocate(k * self._row_bytes, "the draft's probabilities") if draft else Address(0)
        self._picks_logits: RowPicker | None = None
        self._draft_logits = draft.logits if draft else Address(0)
        if draft is not None and draft.reader is not None:
            self._picks_logits = RowPicker(device, draft.vocab_size, columns)
            self._picks_feedback = RowPicker(device, draft.reader.width)
            self._draft_logits = device.allocate(self._row_bytes, "a row of the draft's logits")
        self._bound: dict[tuple[str, int], Enqueue] = {}
        self._replay = Replay(device)

    def run(
        self,
        tokens: Sequence[int],
        num_draft_tokens: int,
        noise: RoundNoise | None,
        hidden: NDArray[np.float32] | None = None,
    ) -> RoundResult:
        k, position = num_draft_tokens, len(tokens) - 1
        check_rows(len(tokens) + k, self._contract)
        draft = self._draft if k else None
        if k and (draft is None or len(tokens) < 2):
            raise EngineError(
                f"a round of {k} draft tokens after {len(tokens)} tokens needs a draft and at least two tokens"
            )
        self._target.prepare(position)
        self._target.tokens[k + 1].host[0] = tokens[-1]
        self._target.positions[k + 1].host[0] = position
        if draft is not None:
            self._set_draft(draft, tokens, k, hidden)
        self._begin(position, k, draft)
        rule = GREEDY
        if noise is not None:
            rule = noise.verification
            self._sampling.host[:] = noise.sampling
            self._draft_noise.host[:k] = noise.draft_noise
            self._noise.host[: k + 1] = noise.noise
        span = self._contract.span(len(tokens) + k)
        with self._device.entered():
            self._replay.run((rule, k, span), lambda: self._round(rule, k, span))
        for decoder in filter(None, (self._target, draft)):
            if decoder.states is not None:
                decoder.states.finish()
        # Rows attend to those before them: if any row of a pass is not finite, the last one is not either.
        self._target.suspect = not np.isfinite(self._last_logit.host[0])
        if draft is not None:
            draft.suspect = bool(np.isnan(self._confidence.host[:k]).any())
        if self._target.taps is not None:
            self._target.taps.count = k + 1
        return self._result(k, position)

    def _set_draft(
        self, draft: DeviceDecoder, tokens: Sequence[int], k: int, hidden: NDArray[np.float32] | None
    ) -> None:
        """Put what the draft's passes read into their mirrors."""
        width, count, start = 2, 2, len(tokens) - 2
        if draft.reader is not None:
            width, count = k + 1, 0 if hidden is None else len(hidden)
            start = len(tokens) - 1 - count
            if hidden is None or not 1 <= count <= width or start < 0:
                raise EngineError(
                    f"a round of {k} draft tokens after {len(tokens)} tokens was given the hidden states of {count} "
                    f"rows; it needs those of 1 to {width}"
                )
            draft.reader.read(hidden)
            draft.reader.pad(width)
            self._last_row.host[0] = count - 1
        draft.prepare(start)
        draft.tokens[width].host[:count] = tokens[-count:]
        draft.tokens[width].host[count:] = 0
        draft.positions[width].host[0] = start
        self._positions.host[:k] = range(start + count - 1, start + count - 1 + k)

    def _begin(self, position: int, k: int, draft: DeviceDecoder | None) -> None:
        """Set, for the passes of the round, how many rows the states of both models commit."""
        with self._device.entered():
            if self._target.states is not None:
                (counts,) = self._target.states.begin(position, [k + 1])
                self._target.set_counts(k + 1, counts)
            if draft is not None and draft.states is not None:
                first, *more = draft.states.begin(position - 1, [2, *[1] * (k - 1)])
                draft.set_counts(2, first)
                for index, counts in enumerate(more, 1):
                    for slot, count in zip(self._counts, counts, strict=True):
                        slot.host[index] = count

    def warm_up(self) -> None:
        """Capture the rounds that requests need, so that none of them waits for it; rounds with token verification are
        captured at their first use.

        Overwrites rows of the caches.
        """
        most = self._contract.max_draft_tokens if self._draft is not None else 0
        for span in self._contract.spans:
            for k in range(most + 1):
                noise = np.full(k + 1, 0.5, np.float32)
                for draws in (None, RoundNoise("block", np.array([1.0, 0, 1.0, 0], np.float32), noise[1:], noise)):
                    tokens = [0] * (span - k)
                    for decoder, left in ((self._target, 1), (self._draft, 2)):
                        if decoder is not None and decoder.states is not None:
                            decoder.states.assume(len(tokens) - left)
                    self.run(tokens, k, draws, self._any_hidden(k))

    def _any_hidden(self, k: int) -> NDArray[np.float32] | None:
        reader = self._draft.reader if self._draft is not None else None
        return np.zeros((k + 1, reader.given_width), np.float32) if reader is not None else None

    def _round(self, rule: str, k: int, span: int) -> None:
        copy, target = self._device.copy, self._target
        sampled = rule != GREEDY
        self._inputs.send()
        target.inputs.send()
        if k:
            self._propose(k, span, sampled)
            copy(target.tokens[k + 1].at(1), self._draft_tokens.address, 8 * k)
        target.enqueue(k + 1, span)
        if target.taps is not None:
            target.taps.receive(k + 1)
        copy(self._last_logit.address, target.logits + k * self._row_bytes, 4)
        if k:
            self._accept(rule, k)()
        else:
            # Plain decoding selects a token from the target, with the noise of acceptance.
            if sampled:
                copy(self._select_noise.address, self._noise.address, 4)
            self._select(sampled, target, self._next_token.address)()
        self._outputs.receive()

    def _propose(self, k: int, span: int, sampled: bool) -> None:
        copy, draft = self._device.copy, self._draft
        assert draft is not None
        draft.inputs.send()
        token = draft.tokens[1]  # where `select` writes, and the next pass reads
        for index in range(k):
            if index == 0 and draft.reader is not None:
                draft.reader.send(k + 1)
                draft.enqueue(k + 1, span)
            elif index == 0:
                draft.enqueue(2, span)
                # only the last row is used
                copy(draft.logits, draft.logits + self._row_bytes, self._row_bytes)
            else:
                copy(draft.positions[1].address, self._positions.at(index), 8)
                if draft.reader is not None:
                    row = self._last_row if index == 1 else self._first_row
                    self._picks_feedback.enqueue(draft.reader.address, draft.reader.feedback, row.address)
                for given, slot in zip(draft.counts[1], self._counts, strict=True):  # none without states
                    copy(given.address, slot.at(index), 8)
                draft.enqueue(1, span)
            if self._picks_logits is not None:
                row = self._first_row if index else self._last_row
                self._picks_logits.enqueue(self._draft_logits, draft.logits, row.address)
            if sampled:
                copy(self._select_noise.address, self._draft_noise.at(index), 4)
            self._select(sampled, draft, token.address)()
            copy(self._draft_tokens.at(index), token.address, 8)
            copy(self._confidence.at(index), self._selected.address, 4)
            if sampled:
                copy(self._draft_probs + index * self._row_bytes, self._drawn, self._row_bytes)

    def _select(self, sampled: bool, decoder: DeviceDecoder, token: Address) -> Enqueue:
        logits = decoder.logits if decoder is self._target else self._draft_logits
        addresses = {"logits": logits, "token": token, "confidence": self._selected.address}
        if sampled:
            addresses |= {
                "noise": self._select_noise.address,
                "sampling": self._sampling.address,
                "draft_probs": self._drawn,
            }
        return self._bind("select" if sampled else "select_greedy", int(decoder is self._target), addresses)

    def _accept(self, rule: str, k: int) -> Enqueue:
        addresses = {
            "logits": self._target.logits,
            "draft_tokens": self._draft_tokens.address,
            "position": self._target.positions[k + 1].address,
            "num_accepted": self._num_accepted.address,
            "next_token": self._next_token.address,
            "next_position": self._next_position.address,
        }
        if rule != GREEDY:
            addresses |= {
                "noise": self._noise.address,
                "sampling": self._sampling.address,
                "draft_probs": self._draft_probs,
            }
        return self._bind(f"accept_{rule}_{k}", 0, addresses)

    def _bind(self, name: str, place: int, addresses: Mapping[str, Address]) -> Enqueue:
        """The pass of the rule `name`. place: tells the draft's from the target's."""
        enqueue = self._bound.get((name, place))
        if enqueue is None:
            enqueue = self._bound[name, place] = self._rules[name].bind(addresses, self._scratch)
        return enqueue

    def _result(self, k: int, position: int) -> RoundResult:
        next_token = int(self._next_token.host[0])
        if not k:
            lost = bool(np.isnan(self._selected.host[0]))
            return RoundResult([], [], 0, self._target.vocab_size if lost else next_token)
        num_accepted, next_position = int(self._num_accepted.host[0]), int(self._next_position.host[0])
        if not 0 <= num_accepted <= k or next_position != position + num_accepted + 1:
            raise EngineError(
                f"the device's round went wrong: {num_accepted} of {k} draft tokens accepted, from position "
                f"{position} to {next_position}; "
                "report this with the output of specexport doctor"
            )
        return RoundResult(
            self._draft_tokens.host[:k].tolist(), self._confidence.host[:k].tolist(), num_accepted, next_token
        )
