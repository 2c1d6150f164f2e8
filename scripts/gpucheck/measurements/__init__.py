"""Everything that is measured for one bundle on one engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from specexport.bundle import Contract, Role
from specexport.engines.base import Decoder
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.runtime.session import Session

from ..meter import Meter
from ..presets import Effort
from ..session_under_test import Subject
from ..timing import Sample, Spread, interleaved
from .passes import RuleKey, Size, pass_samples, rule_samples
from .rounds import BLOCK, GREEDY, RoundKey, RoundTime, timed_round
from .speed import Speed, measure_speed


@dataclass(frozen=True)
class PassTime:
    """clock: whose milliseconds: `gpu`, of a replayed graph, or `host`, of the call, if the library owns the GPU."""

    role: Role
    width: int
    span: int
    clock: str
    ms: Spread


@dataclass(frozen=True)
class RuleTime:
    rule: str
    k: int
    ms: Spread


@dataclass(frozen=True)
class Measurements:
    passes: list[PassTime]
    rules: list[RuleTime]
    rounds: list[RoundTime]
    speeds: list[Speed]


def measure(subject: Subject, prompts: Sequence[Sequence[int]], effort: Effort) -> Measurements:
    """Measure everything. This writes into the caches without the session's knowledge, so it is reset at the end."""
    session, meter = subject.session, subject.meter
    target, opened = session.engine.target, session.engine.draft
    draft = opened.decoder if opened is not None else None
    if meter is not None and isinstance(target, DeviceDecoder) and isinstance(draft, DeviceDecoder):
        passes, rules, rounds = _on_the_gpu(meter, session, target, draft, effort)
    else:
        passes, rules, rounds = _by_the_host(session, effort), [], []
    speeds = measure_speed(session, prompts, effort.new_tokens, repetitions=2)
    session.reset()
    return Measurements(passes, rules, rounds, speeds)


def _on_the_gpu(
    meter: Meter, session: Session, target: DeviceDecoder, draft: DeviceDecoder, effort: Effort
) -> tuple[list[PassTime], list[RuleTime], list[RoundTime]]:
    """Measure everything in one interleaved run."""
    rounds = session.engine.rounds
    assert rounds is not None
    keys = list(_rounds(session.bundle.manifest.contract, effort))
    targets = pass_samples(meter, target, _sizes(session.bundle.manifest.contract, effort))
    drafts = pass_samples(meter, draft, sorted({size for key in keys for size in key.drafts}))
    rules = rule_samples(meter, session, sorted({rule for key in keys for rule in key.rules}))
    timed = {key: timed_round(meter, rounds, key) for key in keys}
    samples: dict[tuple[str, object], Sample] = {
        **{("target", size): sample for size, sample in targets.items()},
        **{("draft", size): sample for size, sample in drafts.items()},
        **{("rule", rule): sample for rule, sample in rules.items()},
        **{("gpu", key): round.gpu for key, round in timed.items()},
        **{("wall", key): round.wall for key, round in timed.items()},
    }
    found = interleaved(samples, effort.repetitions)
    target_ms: dict[Size, float] = {size: found["target", size].median for size in targets}
    draft_ms: dict[Size, float] = {size: found["draft", size].median for size in drafts}
    rule_ms: dict[RuleKey, float] = {rule: found["rule", rule].median for rule in rules}
    roles: tuple[tuple[Role, dict[Size, Sample]], ...] = (("target", targets), ("draft", drafts))
    return (
        [
            PassTime(role, width, span, "gpu", found[role, (width, span)])
            for role, sizes in roles
            for width, span in sizes
        ],
        [RuleTime(rule, k, found["rule", (rule, k)]) for rule, k in rules],
        [
            RoundTime(
                key.rule,
                key.k,
                key.span,
                round.counts,
                found["gpu", key],
                found["wall", key],
                key.parts(target_ms, draft_ms, rule_ms),
            )
            for key, round in timed.items()
        ],
    )


def _by_the_host(session: Session, effort: Effort) -> list[PassTime]:
    roles: list[tuple[Role, Decoder]] = [("target", session.engine.target)]
    if session.engine.draft is not None:
        roles.append(("draft", session.engine.draft.decoder))
    steps = {
        (role, width, span): _step(decoder, width, span)
        for role, decoder in roles
        for width, span in _sizes(session.bundle.manifest.contract, effort)
        if width <= session.bundle.manifest.contract.widest_step
    }
    found = interleaved(steps, effort.repetitions)
    return [PassTime(role, width, span, "host", found[role, width, span]) for role, width, span in steps]


def _step(decoder: Decoder, width: int, span: int) -> Sample:
    tokens = [1] * width
    decoder.step(tokens, span - width)

    def sample() -> float:
        start = perf_counter()
        decoder.step(tokens, span - width)
        return (perf_counter() - start) * 1e3

    return sample


def _sizes(contract: Contract, effort: Effort) -> list[Size]:
    """Sizes of the target's passes that rounds and prompts need."""
    widths = contract.widths if effort.every_width else sorted({*_verified(contract, effort), contract.prompt_chunk})
    return [(width, span) for width in widths for span in _spans(contract, effort) if width <= span]


def _rounds(contract: Contract, effort: Effort) -> Iterator[RoundKey]:
    for rule in (GREEDY, BLOCK):
        for width in _verified(contract, effort):
            for span in _spans(contract, effort):
                yield RoundKey(rule, width - 1, span)


def _verified(contract: Contract, effort: Effort) -> list[int]:
    """Widths of the target's passes in rounds: k + 1 for each k."""
    every = range(1, contract.max_draft_tokens + 2)
    return list(every) if effort.every_width else sorted({1, 2, every[-1]})


def _spans(contract: Contract, effort: Effort) -> tuple[int, ...]:
    return contract.spans if effort.every_span else tuple(sorted({contract.spans[0], contract.spans[-1]}))
