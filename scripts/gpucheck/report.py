"""The report on one engine: a JSON file, and a table for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .finding import Finding
from .measurements import Measurements
from .thresholds import Measure
from .timing import Spread

FORMAT = 1


@dataclass
class Outcome:
    """The outcome for one pair in one precision. model: sizes of the models. seconds: by finished step. step: the
    current step.

    error: why the case ended early, else empty. finished: False without an error if the run was interrupted.
    measurements: None unless everything was proved. clocks: right after the measurements.
    """

    shape: str
    precision: str
    model: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = ""
    error: str = ""
    findings: list[Finding] = field(default_factory=list)
    measurements: Measurements | None = None
    measures: list[Measure] = field(default_factory=list)
    clocks: dict[str, str] = field(default_factory=dict)
    finished: bool = False

    @property
    def passed(self) -> bool:
        return self.finished and bool(self.findings) and all(finding.passed for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        row = asdict(self) | {"passed": self.passed}
        row["measures"] = [asdict(measure) | {"met": measure.met} for measure in self.measures]
        if self.measurements is not None:
            row["measurements"]["rounds"] = [
                asdict(round) | {"host": round.host, "over_parts": round.over_parts}
                for round in self.measurements.rounds
            ]
        return row


@dataclass
class Report:
    """The report on one engine. found: what `specexport doctor` says about it.

    bandwidth: bytes per second of a copy, with reads and writes counted.
    """

    engine: str
    found: str
    command: str
    environment: dict[str, Any]
    bandwidth: Spread
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)

    @property
    def file_name(self) -> str:
        card = re.sub(r"[^a-z0-9]+", "-", self.environment["gpu"]["name"].lower()).strip("-")
        return f"{card}-{self.engine}-{self.created:%Y-%m-%d-%H%M}.json"

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "created": self.created.isoformat(timespec="seconds"),
            "command": self.command,
            "engine": self.engine,
            "found": self.found,
            "environment": self.environment,
            "copy_bytes_per_second": asdict(self.bandwidth),
            "passed": self.passed,
            "outcomes": [outcome.as_dict() for outcome in self.outcomes],
        }

    def write(self, folder: Path) -> Path:
        """Write the JSON file into `folder`, whole or not at all; returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return temporary.replace(path)


def render(report: Report) -> str:
    gpu = report.environment["gpu"]
    lines = [
        f"{report.engine}: {report.found}",
        f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, copies {report.bandwidth.median / 1e9:.0f} GB/s; "
        f"specexport {report.environment['specexport']['version']} {report.environment['specexport']['commit']}",
    ]
    for outcome in report.outcomes:
        lines += ["", f"{outcome.shape}, {outcome.precision}", *(f"  {line}" for line in _outcome(outcome))]
    return "\n".join(lines)


def _outcome(outcome: Outcome) -> Iterator[str]:
    for finding in outcome.findings:
        yield f"{'proved' if finding.passed else 'FAILED':<8} {finding.name}: {finding.detail}"
    if not outcome.finished:
        yield f"FAILED   {outcome.error or 'the run was cut off'}"
    if outcome.measurements is not None:
        for span, ms in outcome.model.get("floor_ms_by_span", {}).items():
            yield f"floor    span {span:>5}: {ms:.4f} ms to read the target's weights and that many rows"
        yield from _measurements(outcome.measurements)
        if not outcome.measurements.rounds:
            yield "measure  none of the round's: this engine runs no rounds on the device"
    for measure in outcome.measures:
        sign = "<=" if measure.at_most else ">="
        asked = f"asked {sign} {measure.limit:g} {measure.unit}".rstrip()
        measured = f"{measure.measured:.3g} {measure.unit}".rstrip()
        met = "met" if measure.met else "NOT MET"
        yield f"{met:<8} {measure.name}: {measured} at the worst ({measure.where}), {asked}"


def _measurements(found: Measurements) -> Iterator[str]:
    for entry in found.passes:
        clock = " by the host's clock" if entry.clock == "host" else ""
        yield f"pass     {entry.role:<6} width {entry.width:>3} span {entry.span:>5}: {_ms(entry.ms)}{clock}"
    for rule in found.rules:
        yield f"rule     {rule.rule} of {rule.k}: {_ms(rule.ms)}"
    for round in found.rounds:
        yield (
            f"round    {round.rule:<6} k {round.k} span {round.span:>5}: {_ms(round.gpu)} on the GPU, "
            f"{round.over_parts:.3f}x its passes, {round.host * 1e3:.0f} us of the host"
        )
    for speed in found.speeds:
        yield (
            f"speed    k {speed.k}: {speed.tokens_per_second.median:.1f} tokens/s, {speed.over_plain:.2f}x plain, "
            f"{speed.mean_acceptance_length:.2f} tokens a round"
        )


def _ms(spread: Spread) -> str:
    return f"{spread.median:.4f} ms ({spread.low:.4f} to {spread.high:.4f})"
