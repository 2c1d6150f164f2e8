from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import (
    MANIFEST,
    NO_DRAFT,
    SCHEMA_VERSION,
    Bundle,
    CacheLayer,
    Contract,
    Defaults,
    FileEntry,
    Proof,
    Reads,
    SharedVocabulary,
    check_name,
    list_files,
    sha256,
    write_manifest,
)
from specexport.errors import BundleError
from support.doubles import write_bundle
from support.hub_cache import in_the_hubs_layout
from support.refusals import check, refused, says

WEIGHTS = "graphs/draft.weights"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "demo.bundle"
    write_manifest(root, write_bundle(root, chat_template="{{ messages }}").manifest)
    return root


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    change(manifest)
    (root / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def refusal(root: Path, check_digests: bool = True) -> BundleError:
    with pytest.raises(BundleError) as caught:
        Bundle.open(root, check_digests)
    return caught.value


def test_round_trip(root: Path) -> None:
    opened = Bundle.open(root)
    assert opened.manifest == write_bundle(root, chat_template="{{ messages }}").manifest
    assert opened.path(WEIGHTS).read_bytes() == WEIGHTS.encode()
    assert set(opened.manifest.files) == set(list_files(root))
    assert MANIFEST not in opened.manifest.files


def test_a_flipped_byte_is_found_by_its_digest(root: Path) -> None:
    content = bytearray((root / WEIGHTS).read_bytes())
    content[0] ^= 1
    (root / WEIGHTS).write_bytes(content)
    check(refusal(root), "SHA", code="file_changed")
    Bundle.open(root, check_digests=False)


def test_a_cut_file_is_found_without_its_digest(root: Path) -> None:
    (root / WEIGHTS).write_bytes(b"cut")
    check(refusal(root, check_digests=False), "20", code="file_changed")


def test_a_missing_file(root: Path) -> None:
    (root / WEIGHTS).unlink()
    check(refusal(root, check_digests=False), code="file_missing")


@pytest.mark.parametrize("refuses", ["is_dir", "exists", "is_file", "stat", "open"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read(root: Path, monkeypatch: pytest.MonkeyPatch, refuses: str, number: int) -> None:
    """Root may read everything, so the refusal is the test's."""
    called = {"is_dir": root, "exists": root / MANIFEST}.get(refuses, root / WEIGHTS)
    real = getattr(Path, refuses)

    def method(path: Path, *given: Any, **more: Any) -> Any:
        if path == called:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *given, **more)

    monkeypatch.setattr(Path, refuses, method)
    with refused(BundleError, "permissions"):
        Bundle.open(root)


def test_no_folder(tmp_path: Path) -> None:
    check(refusal(tmp_path / "nothing.bundle"), "--target", code="bundle_not_found")
    (tmp_path / "file").touch()
    check(refusal(tmp_path / "file"), "specexport build", code="bundle_not_found")
    (tmp_path / "config.json").touch()
    check(refusal(tmp_path), "checkpoint", "specexport build", code="bundle_not_found")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"'])
def test_a_manifest_that_is_no_json_object(root: Path, content: str) -> None:
    (root / MANIFEST).write_text(content, encoding="utf-8")
    check(refusal(root), field=(None, "manifest.json"))


def test_an_unknown_key(root: Path) -> None:
    edit(root, lambda m: m["contract"].update(colour="red"))
    check(refusal(root), field="manifest.json.contract.colour")


def test_a_bundle_has_an_engine(root: Path) -> None:
    edit(root, lambda m: m["engines"].clear())
    check(refusal(root), "engine", field="manifest.json")


def test_what_a_bundle_does_not_use_is_not_written(root: Path) -> None:
    """So that earlier versions of specexport, which refuse unknown keys, read it."""
    raw = json.loads((root / MANIFEST).read_text())
    assert not raw["target"].keys() & {"taps", "tap_width", "reads"}
    assert not raw["contract"].keys() & {"tree_rows", "cache_precision"}
    assert "defaults" not in raw
    manifest = Bundle.open(root).manifest
    used = replace(
        manifest,
        target=replace(manifest.target, taps=(-1,), tap_width=8),
        contract=replace(manifest.contract, tree_rows=2),
        defaults=Defaults(repetition_penalty=1.1),
    )
    write_manifest(root, used)
    assert Bundle.open(root).manifest == used


def test_a_newer_schema_is_named_before_its_unknown_keys(root: Path) -> None:
    edit(root, lambda m: m.update(schema_version=SCHEMA_VERSION + 1, later="key"))
    check(refusal(root), SCHEMA_VERSION, "update", code="schema_version", field="manifest.json.schema_version")


def test_an_older_schema_is_to_be_built_again(root: Path) -> None:
    """Schema 1, as it was before drafts could be missing: the version is named, and not the keys that it lacks."""
    edit(root, lambda m: [m.update(schema_version=1), m.pop("drafts")])
    check(refusal(root), "1", code="schema_version", field="manifest.json.schema_version")
    for command in ("specexport\x1b[2J", 7, None):
        edit(root, lambda m, command=command: m.update(command=command))
        check(refusal(root), "1", code="schema_version", field="manifest.json.schema_version")


@pytest.mark.parametrize("version", [0, -1, SCHEMA_VERSION - 1, "1", "2", None, True, 1.5, 2.0])
def test_another_schema_version(root: Path, version: object) -> None:
    edit(root, lambda m: m.update(schema_version=version))
    check(refusal(root), code=("invalid_bundle", "schema_version"), field="manifest.json.schema_version")


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "graphs/../../outside",
        "/etc/hostname",
        "graphs\\target.weights",
        "a\0b",
        "a\nb",
        "x" * 5000,
        "",
        "graphs/..",
    ],
)
def test_a_path_that_escapes_or_is_none(root: Path, name: str) -> None:
    (root.parent / "outside").write_text("x")
    edit(root, lambda m: m["files"].update({name: {"bytes": 1, "sha256": "0"}}))
    refusal(root, check_digests=False)


def test_a_bundle_in_the_hubs_cache_opens(root: Path, tmp_path: Path) -> None:
    snapshot = in_the_hubs_layout(root, tmp_path / "models--me--pair")
    assert Bundle.open(snapshot).manifest == Bundle.open(root).manifest


def test_what_a_link_leads_to_is_checked_as_any_file_is(root: Path, tmp_path: Path) -> None:
    snapshot = in_the_hubs_layout(root, tmp_path / "models--me--pair")
    blob = (snapshot / WEIGHTS).resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + b"?")
    check(refusal(snapshot), "SHA", code="file_changed")
    blob.write_bytes(content + b"?")
    check(refusal(snapshot, check_digests=False), "20", code="file_changed")
    blob.unlink()
    check(refusal(snapshot), code="file_missing")


def test_a_link_to_itself(root: Path) -> None:
    (root / WEIGHTS).unlink()
    (root / WEIGHTS).symlink_to(root / WEIGHTS)
    check(refusal(root), code="file_missing")


def test_every_file_that_the_manifest_refers_to_must_be_listed(root: Path) -> None:
    names = list(Bundle.open(root).manifest.referenced_files())
    assert len(names) == len(set(names)) == len(list_files(root))
    for name in names:
        write_manifest(root, write_bundle(root, chat_template="{{ messages }}").manifest)
        edit(root, lambda m, name=name: m["files"].pop(name))
        check(refusal(root), field="manifest.json.files")


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A bundle without a draft."""
    root = tmp_path / "alone.bundle"
    write_manifest(root, write_bundle(root, has_draft=False).manifest)
    return root


def test_a_bundle_without_a_draft(alone: Path) -> None:
    manifest = Bundle.open(alone).manifest
    assert (manifest.drafts, manifest.draft_names, manifest.first_draft) == ((), (), NO_DRAFT)
    assert manifest.models == manifest.pair == {"target": manifest.target}
    assert not [name for name in manifest.referenced_files() if "draft" in name]
    assert set(manifest.referenced_files()) == set(manifest.files) == set(list_files(alone))


@pytest.mark.parametrize("spoil", [list.clear, lambda proofs: proofs.append(proofs[0] | {"role": "other"})])
def test_every_model_has_its_proof_and_no_other(spoil: Callable[[Any], None], root: Path) -> None:
    whole = (root / MANIFEST).read_text(encoding="utf-8")
    for model in (lambda m: m["target"], lambda m: m["drafts"][0]["model"]):
        (root / MANIFEST).write_text(whole, encoding="utf-8")
        edit(root, lambda m, model=model: spoil(model(m)["proofs"]))
        says(str(refusal(root)))


@pytest.mark.parametrize("name", ["draft", "model", "none", "a b"])
def test_names_that_a_second_draft_cannot_have(root: Path, name: str) -> None:
    edit(root, lambda m: m["drafts"].append(m["drafts"][0] | {"name": name}))
    says(str(refusal(root)))


VOCABULARY = {"maps": "graphs/draft.weights", "shared_tokens": 3, "target_tokens": 12, "draft_tokens": 4}


def test_a_shared_vocabulary(root: Path) -> None:
    edit(root, lambda m: m["drafts"][0].update(shared_vocabulary=VOCABULARY))
    assert Bundle.open(root).manifest.drafts[0].shared_vocabulary == SharedVocabulary("graphs/draft.weights", 3, 12, 4)
    assert SharedVocabulary("graphs/draft.weights", 3, 12, 4).overlap == 0.25


def test_files_of_a_vocabulary_must_be_listed(root: Path) -> None:
    (root / "extra").write_bytes(b"x")
    edit(root, lambda m: m["drafts"][0].update(shared_vocabulary=VOCABULARY | {"maps": "extra"}))
    check(refusal(root), field="manifest.json.files")


def test_list_files_has_sizes_and_digests(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_bytes(b"abc")
    (tmp_path / MANIFEST).write_text("{}")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert list_files(tmp_path) == {"sub/a": FileEntry(3, digest)}
    assert sha256(tmp_path / "sub/a") == digest


def test_what_a_manifest_says_of_its_models(root: Path) -> None:
    manifest = Bundle.open(root).manifest
    quantized = replace(manifest, target=replace(manifest.target, format="int8", layers=(CacheLayer(2, 8),)))
    assert manifest.longest == manifest.contract.capacity == quantized.longest + 1
    on_gpus = replace(quantized, contract=replace(manifest.contract, precision="fp16"))
    assert on_gpus.longest == manifest.contract.capacity
    assert quantized.target.row_bytes(manifest.contract) == 2 * 4 * 2 * 8  # keys and values in fp32
    assert Defaults(banned_tokens=(-1, 0, 255, 256)).within(256).banned_tokens == (0, 255)
    assert not Proof("fake", "ort", "target", 1, 1, math.nan, 1e-3).passed
    for name in ("lookup", "a b"):
        with pytest.raises(ValueError, match="the draft name"):
            check_name(name)


@pytest.mark.parametrize(
    ("reads", "fits"),
    [
        (Reads("eagle3", (2, -1), 8, {"ort": "graphs/fuse.onnx"}), True),
        (Reads("mtp", (-1,), 16, {}), True),
        (Reads("eagle3", (2, 3), 8, {"ort": "graphs/fuse.onnx"}), False),  # a tap that the target does not give
        (Reads("eagle3", (2, -1), 8, {"kernels": "graphs/fuse.onnx"}), False),  # no graph that fuses for `ort`
        (Reads("mtp", (-1,), 8, {}), False),  # of another width
        (Reads("assistant", (-1,), 16, {}, caches=(0,)), True),
        (Reads("assistant", (-1,), 16, {}, caches=(1,)), False),  # a layer that the target does not have
    ],
)
def test_a_draft_reads_hidden_states_that_the_target_gives(reads: Reads, fits: bool, root: Path) -> None:
    manifest = write_bundle(root).manifest
    layers = (CacheLayer(2, 8),)
    draft = replace(manifest.drafts[0], model=replace(manifest.drafts[0].model, reads=reads, layers=layers))
    target = replace(manifest.target, taps=(-1, 2), tap_width=16, layers=layers)
    with nullcontext() if fits else pytest.raises(ValueError, match="draft reads other hidden states"):
        replace(manifest, target=target, drafts=(draft,))


def test_widths_of_a_contract() -> None:
    assert Contract(64, 4, 16, "fp32").widths == (1, 2, 3, 4, 5, 16)
    assert Contract(64, 1, 2, "fp32").widths == (1, 2)
    assert Contract(64, 1, 2, "fp32").widest_step == 2
    assert [Contract(1100, 4, 16, "fp32").span(end) for end in (512, 513, 1100)] == [512, 1024, 1100]


@pytest.mark.parametrize(
    ("capacity", "drafts", "chunk"), [(64, 0, 8), (64, 4, 0), (19, 4, 8), (15, 1, 1), (0, 1, 1), (-5, 1, 1)]
)
def test_absurd_contracts(capacity: int, drafts: int, chunk: int) -> None:
    with refused(ValueError):
        Contract(capacity, drafts, chunk, "fp32")


def with_plan(root: Path) -> None:
    file = "engines/tensorrt-rtx/target.plan"
    (root / file).parent.mkdir(parents=True)
    (root / file).write_bytes(b"plan")
    plan = {
        "engine": "tensorrt-rtx",
        "graph": "graphs/target.ort.onnx",
        "file": file,
        "version": "1.7.1",
        "compute_capabilities": ["8.9"],
        "version_compatible": False,
    }
    edit(
        root, lambda m: [m.update(plans=[plan]), m["files"].update({file: {"bytes": 4, "sha256": sha256(root / file)}})]
    )


@pytest.mark.parametrize("content", [None, b"longer", b"nalp"])
def test_a_plan_that_is_lost_or_changed_is_compiled_again_and_the_bundle_not_built_again(
    root: Path, content: bytes | None
) -> None:
    with_plan(root)
    plan = root / "engines/tensorrt-rtx/target.plan"
    assert Bundle.open(root).manifest.plans[0].compute_capabilities == ("8.9",)
    plan.unlink()
    if content is not None:
        plan.write_bytes(content)
    check(refusal(root), "--engine", code=("file_changed", "file_missing"))
    assert len(Bundle.open(root, without_plans="tensorrt-rtx").manifest.plans) == 1
    with pytest.raises(BundleError):
        Bundle.open(root, without_plans="tensorrt")


def test_plans_must_be_listed_among_the_files(root: Path) -> None:
    with_plan(root)
    edit(root, lambda m: m["files"].pop("engines/tensorrt-rtx/target.plan"))
    check(refusal(root), field="manifest.json.files")
