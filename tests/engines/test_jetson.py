"""What is said on a Jetson, found by files that are not there: pip's TensorRT does not fit JetPack's driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.engines.cuda import driver
from specexport.engines.tensorrt import api
from specexport.errors import EngineError, MissingPackageError


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host of another make with a device tree."""
    monkeypatch.setattr(driver, "machine", lambda: "aarch64")
    monkeypatch.setattr(driver, "TEGRA_RELEASE", tmp_path / "nv_tegra_release")
    monkeypatch.setattr(driver, "BOARD_MODEL", tmp_path / "model")
    (tmp_path / "model").write_bytes(b"Raspberry Pi 5\0")
    return tmp_path


def test_either_file_tells(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not driver.on_jetson()
    (board / "model").write_bytes(b"NVIDIA Jetson Orin Nano Developer Kit\0")
    assert driver.on_jetson()
    (board / "model").unlink()
    assert not driver.on_jetson()
    (board / "nv_tegra_release").touch()
    assert driver.on_jetson()
    monkeypatch.setattr(driver, "machine", lambda: "x86_64")
    assert not driver.on_jetson()


@pytest.mark.parametrize("here", [True, False])
def test_what_is_missing_comes_from_jetpack(here: bool, board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(name, name=name)

    if here:
        (board / "nv_tegra_release").touch()
    for module in (api, driver):
        monkeypatch.setattr(module, "import_module", absent)
    monkeypatch.setattr(api, "_is_installed", lambda name: False)
    for name in ("tensorrt", "tensorrt_lean"):
        with pytest.raises(MissingPackageError) as caught:
            api.library(name)
        assert ("sudo apt install nvidia-jetpack" in str(caught.value)) is here
        assert ("pip install" in str(caught.value)) is not here
    with pytest.raises(MissingPackageError) as caught:
        driver.load_driver()
    assert str(caught.value).endswith("'specexport[jetson]'" if here else "'specexport[cuda]'")


def test_old_bindings_are_replaced_by_those_of_the_extra(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        __version__ = "12.6.0"

    (board / "nv_tegra_release").touch()
    monkeypatch.setattr(driver, "import_module", lambda name: Old)
    with pytest.raises(EngineError, match=r"too old; pip install 'specexport\[jetson\]'$"):
        driver.load_driver()
