"""An engine on a pair: build, load, prove, and measure what was proved."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from specexport.bundle import ELEMENT_BYTES, Bundle, Role
from specexport.engines.registry import LIBRARIES
from specexport.errors import EngineError, SpecExportError
from specexport.exporter.build import build
from specexport.exporter.request.options import BuildOptions
from specexport.exporter.storage.atomic_folder import require_space

from .environment import clocks
from .line_progress import Told
from .measurements import measure
from .presets import Effort
from .proofs import prove
from .report import Outcome, Report
from .session_under_test import Subject, open_subject
from .shapes import SHAPES, Shape, bytes_read, stored_bytes_read
from .thresholds import Reads, judge

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to check: every engine on every pair in every precision."""

    shapes: Sequence[str]
    precisions: Sequence[str]
    effort: Effort


@dataclass(frozen=True)
class Case:
    """One of them. bandwidth: bytes a second."""

    shape: Shape
    precision: str
    engine: str
    effort: Effort
    bandwidth: float


def check(plan: Plan, reports: Mapping[str, Report], output: Path, tell: Tell) -> None:
    """Fill the reports, by engine. An engine that fails is told of in its report, and the others go on.

    Each report is written to `output` whenever there is news: a run that is cut off keeps what it had found.
    """
    for report in reports.values():
        report.write(output)
    for shape in (SHAPES[name] for name in plan.shapes):
        with tempfile.TemporaryDirectory(prefix="gpu_check-") as work:
            for precision in plan.precisions:
                for engine, report in reports.items():
                    case = Case(shape, precision, engine, plan.effort, report.bandwidth.median)
                    outcome = Outcome(shape.name, precision)
                    report.outcomes.append(outcome)

                    def news(line: str, report: Report = report) -> None:
                        tell(line)
                        report.write(output)

                    news(f"{shape.name}, {precision}, {engine}")
                    with recorded(outcome):
                        _check(case, Path(work), outcome, news)
                    news(f"  {outcome.error or 'finished'}")


def _check(case: Case, work: Path, outcome: Outcome, tell: Tell) -> None:
    """Checkpoints stay in `work` for the cases that follow."""
    shape, root = case.shape, work / "checked.bundle"
    with _timed(outcome, "make the checkpoints"):
        checkpoints = _checkpoints(shape, work)
    options = BuildOptions(
        max_seq_len=shape.capacity,
        max_draft_tokens=shape.max_draft_tokens,
        precision=case.precision,
        engines=(case.engine,),
        cache=work / "cache",
    )
    try:
        progress = Told(tell)
        report = build(str(checkpoints["target"]), str(checkpoints["draft"]), root, options, progress)
        outcome.seconds |= {time.label: round(time.seconds, 3) for time in report.times}
        if case.engine in LIBRARIES and case.engine not in {plan.engine for plan in report.bundle.manifest.plans}:
            raise EngineError(". ".join(progress.notes))  # which say why there are none
        with _timed(outcome, "load"):
            subject = open_subject(root, case.engine, checkpoints)
        with subject.session:
            examine(subject, shape, case.effort, case.bandwidth, outcome, tell)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _checkpoints(shape: Shape, work: Path) -> dict[Role, Path]:
    found = shape.checkpoints(work)
    if not all((folder / "config.json").is_file() for folder in found.values()):
        require_space(work, 3 * 2 * shape.num_parameters)  # checkpoint, bundle and plans lie there at once
        shape.write(work)
    return found


def examine(subject: Subject, shape: Shape, effort: Effort, bandwidth: float, outcome: Outcome, tell: Tell) -> None:
    """Prove, and measure if everything was proved. bandwidth: bytes a second."""
    session = subject.session
    manifest = session.bundle.manifest
    contract = manifest.contract
    prompts = shape.prompts(session, effort.prompts)
    row_bytes = manifest.target.cache_bytes(contract) // contract.capacity
    source, quantized = subject.checkpoints["target"], manifest.target.format != "float"
    weights = stored_bytes_read(session.bundle, source) if quantized else bytes_read(source, contract.precision)
    reads = Reads(weights, row_bytes, bandwidth)
    outcome.model = _describe(session.bundle, reads)
    with _timed(outcome, "prove"):
        for finding in prove(subject, prompts, effort, shape.walks and not quantized, shape.sampled):
            outcome.findings.append(finding)
            tell(f"  {'proved' if finding.passed else 'FAILED'} {finding.name}: {finding.detail}")
    if not all(finding.passed for finding in outcome.findings):
        return
    with _timed(outcome, "measure"):
        outcome.measurements = measure(subject, prompts, effort)
        outcome.clocks = clocks()
    outcome.measures = judge(
        outcome.measurements, reads, shape.asked_speed and contract.precision == "fp16" and not quantized
    )


def _describe(bundle: Bundle, reads: Reads) -> dict[str, object]:
    manifest = bundle.manifest
    contract = manifest.contract
    return {
        "parameters": {role: model.num_parameters for role, model in manifest.models.items()},
        "vocab_size": manifest.target.vocab_size,
        "capacity": contract.capacity,
        "spans": contract.spans,
        "widths": contract.widths,
        "formats": {role: model.format for role, model in manifest.models.items()},
        "element_bytes": ELEMENT_BYTES[contract.precision],
        "weight_bytes_read": reads.weights,
        "cache_bytes_a_row": reads.cache_row,
        "floor_ms_by_span": {span: reads.floor(span) for span in contract.spans},
    }


@contextmanager
def recorded(outcome: Outcome) -> Iterator[None]:
    """Turns an error into the outcome's; one that nobody foresaw is shown whole as well."""
    try:
        yield
        outcome.finished = True
    except (SpecExportError, OSError) as error:
        outcome.error = str(error)
    except Exception as error:
        traceback.print_exc()
        outcome.error = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


@contextmanager
def _timed(outcome: Outcome, label: str) -> Iterator[None]:
    start = perf_counter()
    yield
    outcome.seconds[label] = round(perf_counter() - start, 3)
