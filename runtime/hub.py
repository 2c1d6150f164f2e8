"""Bundles and checkpoints by their names: `org/name` or `org/name@revision` on the Hugging Face hub, the last part of a
path here, since whole paths tell strangers who built a bundle, and where.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import BundleError, MissingPackageError

SUFFIX = ".bundle"  # of a folder: a mistyped path is not looked for on the hub
MADE = "'specexport build' makes bundles"
UNREACHABLE = {"TransportError", "ConnectionError"}  # of httpx and of requests
# Of a page. Paths have lost a slash.
ADDRESS = re.compile(r"(https?:/+[^/]+|(www\.)?huggingface\.co|hf\.co)(/|$)", re.IGNORECASE)
NOT_OWNERS = {"api", "collections", "datasets", "docs", "papers", "spaces"}
ON_HUB = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")


def local_bundle(path: str | os.PathLike[str]) -> Path:
    """The folder `path`, or the folder of the bundle with that name on the hub, after downloading it.

    An existing folder takes precedence. Files go to huggingface_hub's cache, and only missing ones are downloaded.
    Raises `BundleError` for what is neither, `MissingPackageError` without huggingface_hub.
    """
    if not os.fspath(path):
        raise BundleError("the bundle's path is empty; give a folder, or a name on the hub", code="bundle_not_found")
    folder = Path(path)
    if not os.path.lexists(folder) and (reason := address_reason(os.fspath(path))) is not None:
        raise BundleError(reason, code="bundle_not_found")
    match = ON_HUB.fullmatch(os.fspath(path))
    if match is None or folder.suffix == SUFFIX or os.path.lexists(folder) or os.path.lexists(folder.parent):
        return folder
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        missing = MissingPackageError("huggingface_hub", "hub")
        raise BundleError(
            f"there is no folder {path}; check the path ({MADE}), or to look for it on the hub: {missing}",
            code="bundle_not_found",
        ) from None
    try:
        return Path(snapshot_download(match["repository"], revision=match["revision"]))
    except Exception as error:  # errors of its HTTP library come through
        raise BundleError(
            f"there is no folder {path}, and no such bundle could be downloaded: {hub_reason(error)}; check the path "
            f"({MADE})",
            code="bundle_not_found",
        ) from None


def address_reason(source: str) -> str | None:
    """Why `source` is not taken, with the name to give instead, if it is the address of a page; else None."""
    if (match := ADDRESS.match(source)) is None:
        return None
    owner, *rest = source[match.end() :].split("/")
    name = f"{owner}/{rest[0]}" if rest and rest[0] and owner not in NOT_OWNERS else "org/name"
    return f"{source} is an address; give a folder, or a name on the hub as in {name}"


def hub_reason(error: BaseException) -> str:
    """Why a call of huggingface_hub failed, in one line. Its HTTP library may be requests or httpx."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "LocalEntryNotFoundError" in kinds and error.__cause__ is not None:  # whatever kept it from downloading
        return hub_reason(error.__cause__)
    if UNREACHABLE & kinds:
        return "the hub cannot be reached from here (is there a network?)"
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def bundle_name(root: Path) -> str:
    """The name of a bundle: its folder without the suffix, or its repository on the hub without the owner."""
    root = root.resolve()
    if root.parent.name == "snapshots":
        return root.parents[1].name.rpartition("--")[2]
    return root.name.removesuffix(SUFFIX)


def name_of(source: str) -> str:
    """A hub id as it is; of a folder or file, whether it is still there or not, the last part of its path."""
    there = os.path.lexists(os.path.expanduser(source))  # noqa: PTH111 - of Path, it refuses an unknown user
    if not there and ON_HUB.fullmatch(source.partition(":")[0]):
        return source
    if source.strip("./\\") == "":  # such as `..`
        source = os.path.abspath(source)  # noqa: PTH100 - the name, not what a link leads to
    return re.split(r"[/\\]", source.rstrip("/\\"))[-1] or source
