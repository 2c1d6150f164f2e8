"""matplotlib's drawings as elements of an HTML page, with the page's own colours (light, dark, printed)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ...errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Placeholder colours that matplotlib writes in style attributes; the page's CSS variables replace them.
INK, MUTED, GRID = "#010101", "#010102", "#010103"
SERIES = tuple(f"#0201{index:02x}" for index in range(8))
ID = "svg-id-"
VARIABLES = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    color: f"var(--series-{index})" for index, color in enumerate(SERIES)
}
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
# inches: on a phone 8.5 points stay readable
WIDE, PANEL, STORY = (4.6, 2.9), (3.3, 2.3), (3.7, 2.7)
# inches; fixed, since a layout that measures text takes longer than drawing
LEFT, BOTTOM, MARGIN = 0.66, 0.46, 0.08

SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specexport",
    "font.size": 8.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
}


@contextmanager
def drawing(
    title: str, size: tuple[float, float], names: Mapping[str, str] | None = None
) -> Iterator[tuple[Axes, list[str]]]:
    """Axes to draw on. The finished element is appended to the list when the block ends.

    size: in inches. names: replacements in the drawing for texts that matplotlib lays out, for which the width must not
    matter.
    Raises `MissingPackageError` without matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise MissingPackageError("matplotlib", "calibrate") from None

    drawn: list[str] = []
    with rc_context(SETTINGS):
        canvas = Canvas(figsize=size)
        width, height = size
        axes = canvas.add_axes(
            (LEFT / width, BOTTOM / height, 1 - (LEFT + MARGIN) / width, 1 - (BOTTOM + MARGIN) / height)
        )
        yield axes, drawn
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawn.append(inline(buffer.getvalue(), title, names))


def swatch(look: dict[str, Any]) -> str:
    """A short piece of a series' line, for a legend."""
    return _drawn_swatch(tuple(sorted(look.items())))


@lru_cache
def _drawn_swatch(look: tuple[tuple[str, Any], ...]) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    with rc_context(SETTINGS):
        canvas = Canvas(figsize=(0.36, 0.14))
        places = [0.5] if ("linestyle", "none") in look else [0.0, 0.5, 1.0]
        canvas.add_artist(Line2D(places, [0.5] * len(places), **{"markevery": [len(places) // 2]} | dict(look)))
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline(buffer.getvalue(), None)


def inline(svg: bytes, title: str | None, names: Mapping[str, str] | None = None) -> str:
    """matplotlib's SVG file as an element of an HTML page.

    Namespaces, metadata and the style sheet, which would apply to the whole page, are removed. Ids begin with `ID`,
    which the page replaces in each element, since ids must be unique. Sizes, fonts and colours are the page's. An
    element without a title is decoration.
    """
    root = ElementTree.fromstring(svg)
    used = set(re.findall(r"#([\w.-]+)", " ".join(value for element in root.iter() for value in _links(element))))
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        kept = {_local(name): value for name, value in element.attrib.items()}
        if "id" in kept:
            kept = {
                name: ID + value if name == "id" else value
                for name, value in kept.items()
                if name != "id" or value in used
            }
        if "d" in kept:
            kept["d"] = " ".join(kept["d"].split())
        for name in ("href", "clip-path"):
            if name in kept:
                kept[name] = re.sub(r"#([\w.-]+)", rf"#{ID}\1", kept[name])
        if "style" in kept:
            kept["style"] = _restyled(kept["style"])
        element.attrib.clear()
        element.attrib.update(kept)
        element.tail = None
        if element.tag != "text":
            element.text = None
        elif names:
            element.text = names.get(element.text or "", element.text)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    if title is None:
        root.set("aria-hidden", "true")
    else:
        root.set("role", "img")
        label = ElementTree.Element("title")
        label.text = title
        root.insert(0, label)
    return ElementTree.tostring(root, encoding="unicode")


def _links(element: ElementTree.Element) -> Iterator[str]:
    for name, value in element.attrib.items():
        if _local(name) in ("href", "clip-path"):
            yield value


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _restyled(style: str) -> str:
    style = re.sub(r"\s*font-family:[^;]*;?", "", style)
    style = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", style)
    return re.sub(r"#[0-9a-f]{6}", lambda found: VARIABLES.get(found[0], found[0]), style)
