"""The report in Markdown: for each part a verdict and its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specexport.calibration.tables import printable, table

TITLES = {
    "soak": "A server under random requests",
    "fuzz": "Damaged bundles",
    "kills": "Killed at random points",
    "disk": "Disks that are full or read-only, files that change",
}
KINDS = ("error", "right", "wrong", "traceback", "crash", "hang")


def render(found: dict[str, Any]) -> str:
    """found: the figures of each part, by its name."""
    return "\n\n".join(["# Reliability", *(_part(name, found[name]) for name in TITLES if name in found), ""])


def _part(name: str, found: dict[str, Any]) -> str:
    body = {"soak": _soak, "fuzz": _fuzz}.get(name, _rows)(found)
    return f"## {TITLES[name]}\n\n**{'passed' if found['passed'] else 'FAILED'}** {found['host']}\n\n{body}"


def _soak(found: dict[str, Any]) -> str:
    compared, options = found["compared"], found["options"]
    text = (
        f"{found['requests']} requests in {found['seconds'] / 60:.1f} minutes by {options['clients']} clients (seed "
        f"{options['seed']}), {found['tokens']:.0f} tokens. {compared['answers']} whole answers to "
        f"{compared['requests']} different requests were compared with the same request alone on a fresh session; "
        f"{found['differing']} differ."
    )
    if "memory" in found:
        text += f" Memory: {found['memory']}."
    slopes = (
        (name, f"{line['start']:.1f}", f"{line['per_hour']:+.2f}", f"{line['low']:+.2f} to {line['high']:+.2f}")
        for name, line in found["slopes"].items()
    )
    statuses = (
        (kind, status or "none", count, f"{found['slowest'].get(kind, 0):.2f}")
        for kind, status, count in found["statuses"]
    )
    return "\n\n".join(
        (
            text,
            table("series|at the start|an hour|95 %", slopes),
            table("request|status|times|slowest, s", statuses),
            _findings([*found["wrong"], *map(str, found["different"])]),
        )
    )


def _fuzz(found: dict[str, Any]) -> str:
    options = found["options"]
    names = sorted({(file, fixed) for file, fixed, _, _ in found["counts"]})
    counts = {(file, fixed, kind): count for file, fixed, kind, count in found["counts"]}
    rows = (
        (file, "put right" if fixed else "as it was", *(counts.get((file, fixed, kind), "") for kind in KINDS))
        for file, fixed in names
    )
    text = (
        f"{options['mutations']} mutations from seed {options['seed']}, {found['seconds'] / 60:.1f} minutes, the "
        f"slowest case {found['slowest']:.1f} s. With a digest put right a changed graph or template is another "
        "model: that its answers are others is no fault of the loader."
    )
    bad = [
        f"{entry['number']} {entry['file']} ({entry['way']}): {entry['kind']}: {entry['told']}"
        for entry in found["bad"]
        if not entry["another_model"]
    ]
    return "\n\n".join((text, table(f"file|digest|{'|'.join(KINDS)}", rows, words=2), _findings(bad)))


def _rows(found: dict[str, Any]) -> str:
    """A part that is a list of actions and their results."""
    rows = ((row["what"], row["times"], row["found"]) for row in found["rows"])
    return table("what was done|times|remark", rows) + "\n\n" + _findings(found["wrong"])


def _findings(lines: Iterable[str]) -> str:
    return "\n".join(f"- {printable(line[:600])}" for line in lines)
