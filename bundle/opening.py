"""Opening a bundle: reads its manifest and checks every file that it names."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import BundleError
from ..strict import parse, read_json
from .files import sha256
from .manifest import MANIFEST, SCHEMA_VERSION, Manifest


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder and its manifest."""

    root: Path
    manifest: Manifest

    @classmethod
    def open(cls, root: str | Path, check_digests: bool = True, without_plans: str | None = None) -> Bundle:
        """Read and check a bundle: schema, paths, the size of every file, and with `check_digests` its SHA-256.

        without_plans: an engine whose plans are not checked, since they are about to be compiled again.
        Raises `BundleError`, which names the file and what is wrong with it.
        """
        root = Path(root)
        if not root.name:  # "." says nothing in a message
            root = root.absolute()
        with _readable(root, "give the path of another bundle"):
            found = root.is_dir()
            is_checkpoint = found and not (root / MANIFEST).exists() and (root / "config.json").is_file()
        if not found:
            problem = (
                "is a file; a bundle is a folder made by 'specexport build'"
                if root.exists()
                else f"does not exist; check the path, or make a bundle there: specexport build --target ... -o {root}"
            )
            raise BundleError(f"{root} {problem}", code="bundle_not_found")
        if is_checkpoint:
            raise BundleError(
                f"{root} is a checkpoint, not a bundle; specexport build makes one of it", code="bundle_not_found"
            )
        raw = read_json(root / MANIFEST)
        if isinstance(raw, dict) and "schema_version" not in raw:
            raise BundleError(
                f"{root / MANIFEST} has no schema version, so it is not a bundle's manifest; a bundle is a folder made "
                "by 'specexport build'",
                f"{MANIFEST}.schema_version",
            )
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version != SCHEMA_VERSION:
            command = raw.get("command")
            made = f" (it was made with: {command})" if isinstance(command, str) and command.isprintable() else ""
            remedy = f"{'update specexport or ' * (version > SCHEMA_VERSION)}build the bundle again{made}"
            raise BundleError(
                f"{root / MANIFEST} has schema version {version}, this specexport reads {SCHEMA_VERSION}; {remedy}",
                f"{MANIFEST}.schema_version",
                code="schema_version",
            )
        bundle = cls(root, parse(Manifest, raw, MANIFEST))
        bundle._check_files(check_digests, f"engines/{without_plans}/")
        return bundle

    def path(self, name: str) -> Path:
        return self.root / name

    def _check_files(self, check_digests: bool, ignored: str) -> None:
        files = self.manifest.files
        for name in self.manifest.referenced_files():
            if name not in files:
                raise BundleError(
                    f"{MANIFEST} refers to {name!r}, which its list of files lacks; build the bundle again",
                    f"{MANIFEST}.files",
                )
        wanted = {name: entry for name, entry in files.items() if not name.startswith(ignored)}
        for name, entry in wanted.items():
            path = _file(self.root, name, self._remedy(name))
            with _readable(path, self._remedy(name)):
                size = path.stat().st_size
            if size != entry.bytes:
                raise BundleError(
                    f"{path} has {size} bytes, the manifest says {entry.bytes}; {self._remedy(name)}",
                    code="file_changed",
                )
        if check_digests:
            with ThreadPoolExecutor() as pool:
                digests = pool.map(self._digest, wanted)
            for name, digest in zip(wanted, digests, strict=True):
                if digest != wanted[name].sha256:
                    raise BundleError(
                        f"{self.root / name} was changed after the build (SHA-256 differs); {self._remedy(name)}",
                        code="file_changed",
                    )

    def _digest(self, name: str) -> str:
        path = self.root / name
        with _readable(path, self._remedy(name)):
            return sha256(path)

    def _remedy(self, name: str) -> str:
        engine = next((plan.engine for plan in self.manifest.plans if plan.file == name), None)
        return (
            "build the bundle again"
            if engine is None
            else f"make it again with: specexport compile {self.root} --engine {engine}"
        )


@contextmanager
def _readable(path: Path, remedy: str) -> Iterator[None]:
    """Turns an OSError about `path` into a `BundleError`."""
    try:
        yield
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read: {error.strerror or error}; check its permissions and its disk, or {remedy}"
        ) from None


def _file(root: Path, name: str, remedy: str) -> Path:
    """The path of the file `name`, which must exist and may not lead out of the bundle. Raises `BundleError`.

    A file may be a link to elsewhere, as all are in the cache of huggingface_hub; its digest is checked in any case.
    """
    pure, path = PurePosixPath(name), root / name
    if not name.isprintable() or pure.is_absolute() or ".." in pure.parts or "\\" in name:
        raise BundleError(f"{MANIFEST} names {name!r}, which lies outside the bundle; do not use this bundle")
    try:
        with _readable(path, remedy):
            found = path.is_file()
    except RuntimeError:  # a link to itself
        found = False
    if not found:
        raise BundleError(f"{path} is missing; {remedy}", code="file_missing")
    return path
