"""The command line of `scripts/gpu_kit`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .install import Kit, KitError
from .pack import INSTALLER, checkout_bytes, contents, pack, sends
from .wheels import ENGINES, Host, download, find_brought, packages

MB = 10**6
MAX_SENT = 64 * 2**20


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Wheels for a GPU host without access to a package index, in pieces that are small enough to be sent."""


@main.command("pack")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--engine",
    "engines",
    multiple=True,
    default=("onnxruntime-cuda", "tensorrt-rtx"),
    type=click.Choice(tuple(ENGINES)),
    help="The engine whose library to pack. May be repeated. For tensorrt, put tensorrt_cu13_libs-*.whl from NVIDIA's "
    "own package index into FOLDER/wheels first. [default: the other two]",
)
@click.option("--cuda", is_flag=True, help="Also pack what they need of CUDA 13, which torch for CUDA 13 brings too.")
@click.option("--python", default="3.12", show_default=True, help="Python version of the GPU host.")
@click.option("--platform", default="manylinux_2_28_x86_64", show_default=True, help="Newest platform of the GPU host.")
@click.option(
    "--piece-mb", default=45, show_default=True, type=click.IntRange(min=1), help="Largest size of a piece, in MB."
)
def pack_command(folder: Path, engines: tuple[str, ...], cuda: bool, python: str, platform: str, piece_mb: int) -> None:
    """Download the wheels and cut them into pieces in FOLDER.

    Also writes a manifest with digests and a script `install`, which needs no network. Files that are already there and
    correct are kept, so an interrupted run can be continued.
    """
    try:
        (folder / "wheels").mkdir(parents=True, exist_ok=True)
        host, wheels = Host(python, platform), []
        brought = find_brought(folder / "wheels") if "tensorrt" in engines else None
        for package in packages(engines, cuda, brought):
            wheels.append(download(package, host, folder / "wheels"))
            click.echo(f"{wheels[-1].name}: {wheels[-1].stat().st_size / MB:.1f} MB", err=True)
        kit = pack([*wheels, *([brought] if brought else [])], folder, piece_mb * MB, python)
        _show(kit, folder)
    except (KitError, OSError) as error:
        raise click.ClickException(str(error)) from None


@main.command("check")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def check_command(folder: Path) -> None:
    """Compare the pieces in FOLDER with their digests."""
    try:
        kit = Kit.read(folder)
        kit.check(folder)
        _show(kit, folder)
    except (KitError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _show(kit: Kit, folder: Path) -> None:
    for piece, wheels in contents(kit):
        names = ", ".join("-".join(wheel.split("-")[:2]) for wheel in wheels)
        click.echo(f"{piece.name}  {piece.bytes / MB:6.1f} MB  {piece.sha256[:16]}  {names}")
    total, checkout = sum(piece.bytes for piece in kit.pieces), checkout_bytes()
    click.echo(f"{len(kit.pieces)} pieces, {total / MB:.1f} MB in all, for Python {kit.python}")
    try:
        often = str(sends(kit, checkout, MAX_SENT))
    except KitError as error:
        often = f"impossible: {error}"
    click.echo(f"sends of at most 64 MiB, each with this checkout's {checkout / MB:.1f} MB: {often}")
    click.echo(f"there: python{kit.python} {folder.name}/{INSTALLER} {folder.name} SITE")


if __name__ == "__main__":
    sys.exit(main())
