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


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.01), ("Q4_1", 0.1), ("F16", 1e-3), ("BF16", 5e-3)])
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


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5000])


def cut_in_the_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


def foreign(file: Path) -> None:
    file.write_bytes(b"GGML" + file.read_bytes()[4:])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [truncated, cut_in_the_header, foreign, empty])
def test_a_file_that_is_damaged(harm: Callable[[Path], None], file: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(file, tmp_path / "a.gguf"))
    harm(other)
    with refused(CheckpointError):
        _ = find_checkpoint(str(other)).fp32_bytes


def type_of_tensor(file: Path, number: int) -> None:
    """Overwrite the type of the first matrix, as a later version of ggml may write it."""
    content = bytearray(file.read_bytes())
    name = b"token_embd.weight"
    place = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions, and two of them
    assert content[place : place + 4] == bytes(4)  # F32
    content[place : place + 4] = number.to_bytes(4, "little")
    file.write_bytes(content)


@pytest.mark.parametrize("number", [24, 250])  # I8, and one that nobody knows
def test_a_type_of_weights_that_is_not_read(number: int, file: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(file, tmp_path / "a.gguf"))
    type_of_tensor(other, number)
    with refused(CheckpointError):
        find_checkpoint(str(other)).load("fp32")


def test_a_file_of_the_hub(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(source: str, wanted: list[str]) -> Path:
        asked.append((source, wanted))
        return file.parent

    monkeypatch.setattr(find, "_download", download)
    found = find_checkpoint("org/model-GGUF:tiny.gguf")
    assert found.source == "org/model-GGUF:tiny.gguf"
    assert found.digest == find_checkpoint(str(file)).digest
    assert asked == [("org/model-GGUF", ["tiny.gguf"])]
    with refused(CheckpointError, code="checkpoint_not_found"):
        find_checkpoint("org/model-GGUF:other.gguf")
