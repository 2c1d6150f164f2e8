"""A hook for mkdocs: adds pages from outside `docs/` under names inside it, and the API reference."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

ROOT = Path(__file__).resolve().parent.parent
# File of the repository -> page of the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "conventions.md",
    "CHANGELOG.md": "changelog.md",
    "examples/demo_pair/README.md": "demo-pair.md",
}
PUBLIC = ("load", "Session", "SamplingParameters", "Grammar", "Stream", "Generation", "Chunk", "Statistics")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)|src=\"([^\"]+)\"")


@event_priority(100)  # before mkdocstrings reads where to look
def on_config(config: Any) -> Any:
    """Point mkdocstrings to a folder with only the package, since it would walk through everything in the root."""
    place = Path(tempfile.mkdtemp(prefix="specexport-site-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "specexport").mkdir()
    for path in (*ROOT.glob("*.py"), *(file.parent for file in ROOT.glob("[!.]*/__init__.py"))):
        (place / "specexport" / path.name).symlink_to(path)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(place)]
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository into links between pages; other links lose their target."""
    place = page.file.src_uri
    source = next((file for file, name in OUTSIDE.items() if name == place), f"docs/{place}")
    return LINK.sub(lambda match: _link(match, source, place), markdown)


def reference() -> str:
    errors = "::: specexport.errors\n    options:\n      show_root_heading: false\n      members_order: alphabetical\n"
    objects = "\n".join(f"::: specexport.{name}\n" for name in PUBLIC)
    return f"# API reference\n\nFrom the docstrings. [Python](api.md) has examples.\n\n{objects}\n## Errors\n\n{errors}"


def _link(match: re.Match[str], source: str, place: str) -> str:
    text, target, anchor, image = match.groups()
    file = (ROOT / source).parent.joinpath(target or image).resolve().relative_to(ROOT).as_posix()
    if file not in OUTSIDE and (not file.startswith("docs/") or file.startswith("docs/internals/")):
        return match[0] if image else text
    name = "../" * place.count("/") + OUTSIDE.get(file, file.removeprefix("docs/"))
    return f'src="{name}"' if image else f"[{text}]({name}{anchor or ''})"
