from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specexport.errors import CheckpointError
from specexport.exporter.checkpoints import find
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.runtime.load import load
from support.refusals import refused
from support.tiny import save_checkpoint
from write_gguf import write_gguf

TOKENS = torch.tensor([[5, 6, 7, 8, 9, 250, 11, 3] * 6])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("llama"), seed=3, intermediate_size=64)


@pytest.fixture(scope="module")
def file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(folder, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = checkpoint.load("fp32")(TOKENS).logits
    return found


def test_the_same_model_and_tokenizer_as_the_checkpoint_it_was_made_from(folder: Path, file: Path) -> None:
    ours, theirs = find_checkpoint(str(file)), find_checkpoint(str(folder))
    assert torch.equal(logits(ours), logits(theirs))
    text = "def add(a, b):\n    return a + b\n"
    assert ours.tokenizer.encode(text) == theirs.tokenizer.encode(text)
    assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text
    assert ours.tokenizer.chat_template == theirs.tokenizer.chat_template
    for fact in ("architecture", "max_positions", "fp32_bytes", "stop_token_ids"):
        assert getattr(ours, fact) == getattr(theirs, fact), fact


def test_a_file_without_the_suffix_is_known_by_how_it_begins(file: Path, tmp_path: Path) -> None:
    """Ollama's store names files by their digests, and has manifests beside them."""
    blob = tmp_path / "sha256-5f1e2d"
    shutil.copy(file, blob)
    assert torch.equal(logits(find_checkpoint(str(blob))), logits(find_checkpoint(str(file))))
    blob.write_bytes(b'{"schemaVersion":2}')
    with refused(CheckpointError, code="checkpoint_not_found"):
        find_checkpoint(str(blob))


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.01), ("Q4_1", 0.1), ("BF16", 5e-3)])
def test_weights_in_fewer_bits(kind: str, error: float, folder: Path, file: Path, tmp_path: Path) -> None:
    found = find_checkpoint(str(write_gguf(folder, tmp_path / "a.gguf", kind)))
    exact = dict(find_checkpoint(str(folder)).load("fp32").named_parameters())
    for name, weight in found.load("fp32").named_parameters():
        assert torch.allclose(weight, exact[name], atol=error * float(exact[name].abs().max())), name


def test_rotary_divisors_stretch_the_positions_as_in_the_checkpoint(tmp_path: Path) -> None:
    """Llama 3.1 and later: a tensor that transformers leaves out without a word."""
    rope = dict(rope_theta=10000.0, rope_type="llama3", factor=8.0, original_max_position_embeddings=16)
    rope |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
    folder = save_checkpoint(tmp_path / "llama3", rope_parameters=rope)
    plain = save_checkpoint(tmp_path / "llama")
    exact = find_checkpoint(str(folder))
    scaled, unscaled = (find_checkpoint(str(path)).load("fp32").model.rotary_emb.inv_freq for path in (folder, plain))
    divisors = (unscaled / scaled).numpy()
    assert divisors.max() > 2
    file = write_gguf(folder, tmp_path / "a.gguf", extra={"rope_freqs.weight": divisors})
    found = find_checkpoint(str(file))
    assert torch.allclose(logits(found), logits(exact), atol=1e-5)
    assert not torch.allclose(
        logits(find_checkpoint(str(write_gguf(folder, tmp_path / "b.gguf")))), logits(exact), atol=1e-2
    )


@pytest.mark.slow
def test_a_bundle_is_built_and_speaks(file: Path, folder: Path, cache: Path, tmp_path: Path) -> None:
    from specexport.exporter.build import build
    from specexport.exporter.options import BuildOptions

    options = BuildOptions(max_seq_len=64, prompt_chunk=16, cache=cache)
    build(str(file), None, tmp_path / "gguf.bundle", options)
    build(str(folder), None, tmp_path / "folder.bundle", options)
    texts = []
    for name in ("gguf", "folder"):
        with load(tmp_path / f"{name}.bundle") as session:
            texts.append(session.generate([{"role": "user", "content": "print"}], max_new_tokens=12).tokens)
    assert texts[0] == texts[1]


HARMED: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-5000],
    "cut in the header": lambda content: content[:200],
    "foreign": lambda content: b"GGML" + content[4:],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("harm", HARMED)
def test_a_file_that_is_damaged(harm: str, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "a.gguf"
    other.write_bytes(HARMED[harm](file.read_bytes()))
    with refused(CheckpointError):
        _ = find_checkpoint(str(other)).fp32_bytes


def test_a_file_of_the_hub(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(source: str, wanted: list[str]) -> Path:
        asked.append((source, wanted))
        return file.parent

    monkeypatch.setattr(find, "download", download)
    found = find_checkpoint("org/model-GGUF:tiny.gguf")
    assert found.source == "org/model-GGUF:tiny.gguf"
    assert found.digest == find_checkpoint(str(file)).digest
    assert asked == [("org/model-GGUF", ["tiny.gguf"])]
    with refused(CheckpointError, code="checkpoint_not_found"):
        find_checkpoint("org/model-GGUF:other.gguf")
