"""One engine on one pair: build, load, prove, and measure if everything was proved. Runs in its own process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from specexport.bundle import ELEMENT_BYTES, Bundle, Role
from specexport.bundle.files import require_space
from specexport.engines.catalogue import LIBRARIES
from specexport.errors import EngineError
from specexport.exporter import build as module
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.exporter.stage_cache import stage_key

from .apart import one_line
from .environment import clocks
from .line_progress import LineProgress
from .measurements import measure
from .plan import Case
from .presets import Effort
from .proofs import prove
from .report import Outcome
from .session_under_test import Subject, open_subject
from .shapes import Shape, bytes_read, stored_bytes_read
from .thresholds import Reads, judge


class News:
    """Reports an outcome whenever it changes."""

    def __init__(self, tell: Callable[[tuple[str, Outcome]], None], outcome: Outcome) -> None:
        self._tell, self.outcome = tell, outcome

    def say(self, line: str) -> None:
        self._tell((f"  {line.strip()}", self.outcome))

    def begin(self, step: str) -> None:
        """Report a step before it runs, so that a step that hangs or kills the process is known."""
        self.outcome.step = step
        self.say(step)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        self.begin(step)
        start = perf_counter()
        yield
        self.outcome.seconds[step] = round(perf_counter() - start, 3)


def run_case(tell: Callable[[tuple[str, Outcome]], None], case: Case, outcome: Outcome) -> None:
    """Fill the outcome, and report it as it grows."""
    news = News(tell, outcome)
    try:
        _check(case, news)
        outcome.step, outcome.finished = "", True
    except Exception as error:
        outcome.error = one_line(error)
    news.say(outcome.error or "finished")


def prepare(tell: Callable[[tuple[str, Outcome]], None], case: Case) -> None:
    """Build the case's bundle in its folder. Raises `SpecExportError`."""
    _bundle(case, News(tell, Outcome(case.shape.name, case.precision)))


def _check(case: Case, news: News) -> None:
    root = _bundle(case, news)
    try:
        with news.timed("load"):
            subject = open_subject(root, case.engine, case.shape.checkpoints(case.work))
        with subject.session:
            examine(subject, case.shape, case.effort, case.bandwidth, news)
    finally:
        if not _kept(case):
            shutil.rmtree(root, ignore_errors=True)


def _kept(case: Case) -> bool:
    """Whether the bundle is kept. Plans are made again: the bundle's name does not include what they depend on."""
    return case.keep and case.engine not in LIBRARIES


def _bundle(case: Case, news: News) -> Path:
    """Build the bundle, or find a kept one. Checkpoints stay in the folder for later cases."""
    shape = case.shape
    key = stage_key(module.__file__, shape=asdict(shape), precision=case.precision, engine=case.engine)
    root = case.work / f"{case.precision}-{case.engine}-{key[:8]}.bundle"
    if _kept(case) and root.exists():  # a bundle is written whole or not at all
        news.say("bundle: of an earlier run")
        return root
    with news.timed("make the checkpoints"):
        checkpoints = _checkpoints(case)
    options = BuildOptions(
        max_seq_len=shape.capacity,
        max_draft_tokens=shape.max_draft_tokens,
        precision=case.precision,
        draft_precision=case.precision,
        engines=(case.engine,),
        cache=case.work / "cache",
    )
    progress = LineProgress(news.begin, news.say)
    report = build(str(checkpoints["target"]), str(checkpoints["draft"]), root, options, progress)
    news.outcome.seconds |= {time.label: round(time.seconds, 3) for time in report.times}
    if case.engine in LIBRARIES and case.engine not in {plan.engine for plan in report.bundle.manifest.plans}:
        shutil.rmtree(root, ignore_errors=True)
        raise EngineError(". ".join(progress.notes))  # the notes say why there are no plans
    return root


def _checkpoints(case: Case) -> dict[Role, Path]:
    shape = case.shape
    found = shape.checkpoints(case.work)
    if not all((folder / "config.json").is_file() for folder in found.values()):
        copies = 3 if case.engine in LIBRARIES else 2  # checkpoint, bundle and plans are there at the same time
        require_space(case.work, copies * 2 * shape.num_parameters)
        shape.write(case.work)
    return found


def examine(subject: Subject, shape: Shape, effort: Effort, bandwidth: float, news: News) -> None:
    """Prove, and measure if everything was proved. bandwidth: bytes per second."""
    session, outcome = subject.session, news.outcome
    manifest = session.bundle.manifest
    contract = manifest.contract
    prompts = shape.prompts(session, effort.prompts)
    row_bytes = manifest.target.cache_bytes(contract) // contract.capacity
    source, quantized = subject.checkpoints["target"], manifest.target.format != "float"
    weights = stored_bytes_read(session.bundle, source) if quantized else bytes_read(source, contract.precision)
    reads = Reads(weights, row_bytes, bandwidth)
    outcome.model = _describe(session.bundle, reads)
    start = perf_counter()
    for finding in prove(subject, prompts, effort, shape.walks and not quantized, shape.sampled, news.begin):
        outcome.findings.append(finding)
        news.say(f"{'proved' if finding.passed else 'FAILED'} {finding.name}: {finding.detail}")
    outcome.seconds["all proofs"] = round(perf_counter() - start, 3)
    if not all(finding.passed for finding in outcome.findings):
        return
    with news.timed("measure"):
        outcome.measurements = measure(subject, prompts, effort)
        outcome.clocks = clocks()
    outcome.measures = judge(
        outcome.measurements, reads, shape.asked_speed and contract.precision == "fp16" and not quantized
    )


def _describe(bundle: Bundle, reads: Reads) -> dict[str, object]:
    manifest = bundle.manifest
    contract = manifest.contract
    return {
        "parameters": {role: model.num_parameters for role, model in manifest.pair.items()},
        "vocab_size": manifest.target.vocab_size,
        "capacity": contract.capacity,
        "spans": contract.spans,
        "widths": contract.widths,
        "formats": {role: model.format for role, model in manifest.pair.items()},
        "element_bytes": ELEMENT_BYTES[contract.precision],
        "weight_bytes_read": reads.weights,
        "cache_bytes_a_row": reads.cache_row,
        "floor_ms_by_span": {span: reads.floor(span) for span in contract.spans},
    }
