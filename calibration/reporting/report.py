"""An analysis as one self-contained HTML file: the answer, the verdicts, figures, then all tables."""

from __future__ import annotations

from pathlib import Path

from ...atomic import write_whole
from ...errors import MissingPackageError, OutputError
from ...runtime.hub import bundle_name
from ..statistics.results import Analysis
from .figures import figures
from .sections import answer, sections
from .tables import printable


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
    """The page. The template escapes every name. Raises `MissingPackageError`."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingPackageError("jinja2", "calibrate") from None

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        bundle=printable(bundle_name(Path(analysis.bundle)) or analysis.bundle),
        made=printable(analysis.made[:16].replace("T", " ")),
        host=printable(analysis.host),
        requests=sum(entry.requests for entry in analysis.routes),
        answer=answer(analysis),
        figures=figures(analysis),
        sections=sections(analysis),
    )
