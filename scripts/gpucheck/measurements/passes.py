"""Times of single passes on the GPU: of the models by width and span, and of the rules between them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from specexport.engines.base import Arrays, Engine
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.rules import RuleName, RuleSpec
from specexport.runtime.session import Session

from ..meter import Meter
from ..timing import Sample

Size = tuple[int, int]  # width, span
RuleKey = tuple[RuleName, int]  # the rule and k, 0 for rules that read one row


def pass_samples(meter: Meter, decoder: DeviceDecoder, sizes: Iterable[Size]) -> dict[Size, Sample]:
    """Milliseconds of one pass of each size, which ends at the last row of its span."""
    return {(width, span): _pass(meter, decoder, width, span) for width, span in sizes}


def _pass(meter: Meter, decoder: DeviceDecoder, width: int, span: int) -> Sample:
    def place() -> None:
        decoder.tokens[width].host[:] = 1
        decoder.positions[width].host[0] = span - width
        decoder.inputs.send()
        meter.synchronize()

    place()
    decoder.enqueue(width, span)  # a capture does not allow what a first run does
    meter.synchronize()
    time = meter.graph_time(meter.capture(lambda: decoder.enqueue(width, span)))

    def sample() -> float:
        place()
        return time()

    return sample


def rule_samples(meter: Meter, session: Session, wanted: Iterable[RuleKey]) -> dict[RuleKey, Sample]:
    """Milliseconds of each rule alone, without the copies around it."""
    return {key: _rule(meter, session.engine, RuleSpec(*key)) for key in wanted}


def _rule(meter: Meter, engine: Engine, spec: RuleSpec) -> Sample:
    assert engine.open_rule is not None
    run = engine.open_rule(spec)
    arrays = _inputs(spec, engine.target.vocab_size)

    def once() -> None:
        run(arrays)

    once()
    return meter.graph_time(meter.capture_alone(once))


def _inputs(spec: RuleSpec, vocab_size: int) -> Arrays:
    """Inputs of any rule; their values do not change the time of a pass."""
    k, rng = spec.num_draft_tokens, np.random.default_rng(0)
    return {
        "logits": rng.normal(size=(spec.rows, vocab_size)).astype(np.float32),
        "noise": np.full(k + 1, 0.5, np.float32),
        "sampling": np.array([1.0, 0, 1.0, 0], np.float32),
        "draft_tokens": np.zeros(k, np.int64),
        "draft_probs": np.full((k, vocab_size), 1 / vocab_size, np.float32),
        "position": np.array([7]),
    }
