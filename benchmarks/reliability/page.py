"""The page: for each part a verdict, its figures and its tables, in the style of the report of a calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from specexport.calibration.reporting import figures

TITLES = {
    "soak": "A server under random requests",
    "fuzz": "Damaged bundles",
    "kills": "Killed at random points",
    "disk": "Disks that are full or read-only, files that change",
}
KINDS = ("error", "right", "wrong", "traceback", "crash", "hang")
SIZE = (4.6, 2.6)  # inches


def render(found: dict[str, Any]) -> str:
    """The HTML page. found: the figures of each part, by its name."""
    parts = "".join(_part(name, found[name]) for name in TITLES if name in found)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Reliability</title>
{_style()}
</head>
<body>
<h1>Reliability</h1>
{parts}
</body>
</html>
"""


def _style() -> str:
    style = Path(figures.__file__).with_name("report.css.j2").read_text(encoding="utf-8")
    return f"<style>\n{style}</style>"


def _part(name: str, found: dict[str, Any]) -> str:
    body = {"soak": _soak, "fuzz": _fuzz}.get(name, _rows)(found)
    kind, word = ("on", "passed") if found["passed"] else ("off", "failed")
    verdict = f'<span class="{kind}"><b class="verdict">{word}</b></span>'
    host = f'<span class="quiet">{escape(found["host"])}</span>'
    return f"<h2>{TITLES[name]}</h2>\n<p>{verdict} {host}</p>\n{body}"


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
    slopes = [
        [name, f"{line['start']:.1f}", f"{line['per_hour']:+.2f}", f"{line['low']:+.2f} to {line['high']:+.2f}"]
        for name, line in found["slopes"].items()
    ]
    statuses = [
        [kind, str(status or "none"), str(count), f"{found['slowest'].get(kind, 0):.2f}"]
        for kind, status, count in found["statuses"]
    ]
    return (
        f"<p>{text}</p>\n"
        + _panels(_series(found, "rss", "resident memory, MiB"), _series(found, "descriptors", "open descriptors"))
        + _table(["", "at the start", "an hour", "95 %"], slopes)
        + _table(["request", "status", "times", "slowest, s"], statuses)
        + _findings([*found["wrong"], *map(str, found["different"])])
    )


def _series(found: dict[str, Any], name: str, label: str) -> str:
    minutes, line = [seconds / 60 for seconds in found["times"]], found["slopes"][name]
    begin = minutes[len(minutes) // 4]
    with figures.drawing(*SIZE) as (axes, drawn):
        axes.plot(minutes, found["series"][name], color="C0", linewidth=0.8)
        end = line["start"] + line["per_hour"] * (minutes[-1] - begin) / 60
        axes.plot([begin, minutes[-1]], [line["start"], end], color="C1")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes")
        axes.set_ylabel(label)
    return _figure(drawn[0], f"{label}, and the line fitted behind the warm-up")


def _fuzz(found: dict[str, Any]) -> str:
    options = found["options"]
    names = sorted({(file, fixed) for file, fixed, _, _ in found["counts"]})
    table = {(file, fixed, kind): count for file, fixed, kind, count in found["counts"]}
    rows = [
        [file, "put right" if fixed else "as it was", *[str(table.get((file, fixed, kind), "")) for kind in KINDS]]
        for file, fixed in names
    ]
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
    labels = [f"{Path(file).name}{' *' if fixed else ''}" for file, fixed in names]
    with figures.drawing(4.6, 1.2 + 0.22 * len(names)) as (axes, drawn):
        left = [0] * len(names)
        for index, kind in enumerate(KINDS):
            widths = [table.get((file, fixed, kind), 0) for file, fixed in names]
            axes.barh(labels, widths, left=left, color=f"C{index}", label=kind)
            left = [one + other for one, other in zip(left, widths, strict=True)]
        axes.set_xlabel("mutations")
    return (
        f"<p>{escape(text)}</p>\n"
        + _panels(_figure(drawn[0], "outcomes by file; * with the digest put right"))
        + _table(["file", "digest", *KINDS], rows)
        + _findings(bad)
    )


def _rows(found: dict[str, Any]) -> str:
    """A part that is a list of actions and their results."""
    rows = [[row["what"], str(row["times"]), row["found"]] for row in found["rows"]]
    return _table(["what was done", "times", "what came of it"], rows, words=3) + _findings(found["wrong"])


def _figure(drawn: str, caption: str) -> str:
    told = escape(caption)
    return f'<figure><figcaption>{told}</figcaption><img src="{drawn}" alt="{told}"></figure>'


def _panels(*figures: str) -> str:
    return f'<div class="panels">{"".join(figures)}</div>\n'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = ["words" if index < words else "number" for index in range(len(values))]
        long = ["long" if len(value) > 40 else "" for value in values]
        return "".join(
            f'<{tag} class="{kind} {size}">{escape(value)}</{tag}>'
            for kind, size, value in zip(kinds, long, values, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    head = f"<thead><tr>{cells('th', columns)}</tr></thead>"
    return f'<div class="scroll"><table>{head}\n<tbody>{body}</tbody></table></div>\n'


def _findings(lines: Iterable[str]) -> str:
    found = "".join(f"<li>{escape(line[:600])}</li>\n" for line in lines)
    return f"<ul>{found}</ul>\n" if found else ""
