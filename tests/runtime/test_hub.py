"""Bundles on the hub: as huggingface_hub's cache has them, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.bundle import Bundle
from specexport.errors import BundleError
from specexport.runtime.hub import bundle_name, hub_reason, local_bundle
from support.hub_cache import COMMIT, hub_with
from support.refusals import refused

huggingface_hub = pytest.importorskip("huggingface_hub")
httpx = pytest.importorskip("httpx")


pytest.importorskip("transformers", reason="the bundle that is looked for is built here")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: Path) -> Path:
    """A cache that holds `org/tiny`: links in the snapshot to blobs, as the hub's client lays them."""
    return hub_with(built, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny@main", f"org/tiny@{COMMIT}"])
def test_a_bundle_of_the_hub_s_cache_is_loaded_by_its_name(hub: Path, name: str) -> None:
    found = local_bundle(name)
    assert found.resolve() == hub.resolve()
    Bundle.open(found)
    assert bundle_name(found) == "tiny"


def test_what_is_neither_says_both(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError("nothing in the cache\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    with refused(BundleError, "org/other", code="bundle_not_found"):
        local_bundle("org/other")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with refused(BundleError, "huggingface_hub", code="bundle_not_found"):
        local_bundle("org/other")


def test_a_hub_that_refuses_is_told_from_one_that_cannot_be_reached() -> None:
    """huggingface_hub raises one error for both, when it has nothing in its cache."""
    for cause, told in (
        (ConnectionError("no route"), "the hub cannot be reached from here (is there a network?)"),
        (httpx.ConnectTimeout("late"), "the hub cannot be reached from here (is there a network?)"),
        (OSError("429 Client Error\nand more"), "429 Client Error"),
        (None, "nothing in the cache"),
    ):
        error = huggingface_hub.errors.LocalEntryNotFoundError("nothing in the cache")
        error.__cause__ = cause
        assert hub_reason(error) == told
        if cause is not None:
            assert hub_reason(cause) == told


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/org/tiny", "org/tiny"),
        ("https:/huggingface.co/org/tiny", "org/tiny"),  # as pathlib writes it
        ("http://localhost:8000/org/tiny/tree/main", "org/tiny"),
        ("HuggingFace.co/org/tiny", "org/tiny"),
        ("https://huggingface.co", "org/name"),
        ("https://huggingface.co/datasets/org/tiny", "org/name"),
    ],
)
def test_the_address_of_a_page_is_answered_with_the_name(address: str, name: str) -> None:
    with refused(BundleError, f"as in {name}", code="bundle_not_found"):
        local_bundle(address)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with refused(BundleError, "is empty", code="bundle_not_found"):
        local_bundle("")


def test_a_folder_goes_before_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf.co/org/tiny").mkdir(parents=True)
    assert local_bundle("hf.co/org/tiny") == Path("hf.co/org/tiny")
