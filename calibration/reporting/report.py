"""An analysis as one self-contained HTML file: the answer, a story in three figures, then all figures and tables."""

from __future__ import annotations

import itertools
from pathlib import Path

from ...atomic import write_whole
from ...errors import MissingPackageError, OutputError
from ...runtime.hub import bundle_name
from ..statistics.results import Analysis
from .figures import figures
from .sections import answer, sections
from .story import story
from .svg import ID
from .tables import printable

TEMPLATE = "report.html.j2"
# Tables with more rows are folded on screen; print shows them whole.
LONG = 20


def write_report(analysis: Analysis, path: Path) -> None:
    """Write the report to `path`, atomically.

    Raises `MissingPackageError` without matplotlib or jinja2, `OutputError` when the file cannot be written.
    """
    content = render(analysis)
    try:
        write_whole(path, content.encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}; choose another path") from None


def render(analysis: Analysis) -> str:
    """The page. The template escapes every name; figures escape their own. Raises `MissingPackageError`."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingPackageError("jinja2", "calibrate") from None

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    number = itertools.count()
    environment.filters["figure"] = lambda svg: Markup(svg.replace(ID, f"f{next(number)}-"))
    return environment.get_template(TEMPLATE).render(
        bundle=printable(bundle_name(Path(analysis.bundle)) or analysis.bundle),
        made=printable(analysis.made[:16].replace("T", " ")),
        host=printable(analysis.host),
        requests=sum(entry.requests for entry in analysis.routes),
        answer=answer(analysis),
        story=story(analysis),
        sections=sections(analysis),
        figures=figures(analysis),
        long=LONG,
    )
