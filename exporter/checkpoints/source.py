"""Where a checkpoint is, a folder, a GGUF file or one of the hub, and which files of a folder hold its weights: those
that transformers loads, the single one or the shards of an index.

Imports nothing slow, so that typing errors show at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError, safe_open

from ...bundle import MANIFEST
from ...errors import CheckpointError, MissingPackageError, ParameterError
from ...runtime.hub import address_reason, hub_reason

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
ALIKE = "*.safetensors"
UNWANTED = ["consolidated*", "*/*.safetensors"]  # the same weights again, in forms that transformers does not load
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
OTHER_FORMATS = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
MERGE = "merge it into the weights (PEFT: merge_and_unload, then save_pretrained) and give the folder of the result"

Headers: TypeAlias = dict[str, tuple[Path, list[int]]]  # file and shape by tensor


def find_weights(source: str, folder: Path) -> tuple[Path, ...]:
    """Paths of the files. Raises `CheckpointError` where there are none, or one is missing or empty."""
    if (folder / WEIGHTS).is_file():
        files = [folder / WEIGHTS]
    elif (folder / INDEX).is_file():
        files = _indexed(folder / INDEX)
    else:
        others = (path.name for kind in (ALIKE, *OTHER_FORMATS) for path in sorted(folder.glob(kind)))
        other = next((f", only {name}" for name in others), "")
        raise CheckpointError(
            f"{source} has neither {WEIGHTS} nor {INDEX}{other}; download what is missing, or save the whole model "
            "with save_pretrained of transformers"
        )
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; the checkpoint is incomplete, export or download it again")
        if not path.stat().st_size:
            raise CheckpointError(f"{path} is empty; expected weights, export or download it again")
    return tuple(files)


def _indexed(index: Path) -> list[Path]:
    try:
        files = sorted({index.parent / name for name in json.loads(index.read_bytes())["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"{index} cannot be used: {reason}; export or download it again") from None
    if not files:
        raise CheckpointError(f"{index} names no file; expected those of the weights, export or download it again")
    return files


def refuse_adapter(source: str, folder: Path) -> None:
    """Raises `CheckpointError`: whether transformers would apply it depends on the packages installed."""
    if (folder / ADAPTER).is_file():
        alone = not (folder / "config.json").is_file()
        kind = "is an adapter without its base model" if alone else "has an adapter beside its weights"
        merged = "" if alone else f"; if it is merged already, remove {ADAPTER}"
        raise CheckpointError(f"{source} {kind} ({ADAPTER}), which is not read; {MERGE}{merged}")


def read_headers(files: Sequence[Path]) -> Headers:
    """File and shape by tensor. Raises `CheckpointError` for damaged files."""
    found: Headers = {}
    for path in files:
        try:
            with safe_open(path, "np") as file:
                for name in file.keys():  # noqa: SIM118 - no dict
                    if name in found:
                        _refuse_another(name, found[name][0], path)
                    found[name] = path, list(file.get_slice(name).get_shape())
        except SafetensorError as error:
            raise CheckpointError(f"{path} is damaged: {error}; export or download it again") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    return found


def read_tensor(path: Path, name: str) -> Any:
    """Of torch."""
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)


def read_config(source: str, folder: Path, field: str | None = None) -> Mapping[str, Any]:
    """What config.json holds. Raises `CheckpointError`."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source}: config.json cannot be used: {error}", field) from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{source}: config.json holds no object", field)
    return config


def check_length(called: str, positions: int | None, max_seq_len: int | None, why: str = "") -> None:
    """called: the model. why: the reason for an end that its config does not state. Raises `ParameterError` when its
    positions end before `max_seq_len`.
    """
    if positions and max_seq_len and max_seq_len > positions:
        reason = f" ({why})" if why else ""
        raise ParameterError(
            f"--max-seq-len is {max_seq_len}; the {called} has only {positions} positions{reason}", "max_seq_len"
        )


def stated_positions(config: Mapping[str, Any]) -> int | None:
    """What config.json alone says of `max_positions`: None where rotary embeddings may stretch them."""
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    if "factor" in str([text.get("rope_scaling"), text.get("rope_parameters")]):
        return None
    return next((text[name] for name in LENGTHS if type(text.get(name)) is int and text[name] > 0), None)


def _refuse_another(name: str, first: Path, second: Path) -> None:
    ours, theirs = read_tensor(first, name), read_tensor(second, name)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype or not bool((ours == theirs).all()):
        raise CheckpointError(
            f"{first} and {second.name} both hold {name}, with different values; expected each weight once, download "
            "the checkpoint again"
        )


GGUF = ".gguf"
MAGIC = b"GGUF"
NEEDED = ("gguf", "accelerate")  # by transformers' loader
INSTEAD = "give the safetensors checkpoint that it was made from"


def find_local(source: str) -> Path | None:
    """The folder or GGUF file that `source` is, looked at; None for one of the hub.

    Raises `CheckpointError`, and `MissingPackageError` where a GGUF file cannot be read.
    """
    if not source:
        raise _not_found("the model is an empty name; give a checkpoint: a folder, a GGUF file or a hub id")
    try:
        path = Path(source).expanduser()
        exists = path.exists()
    except (RuntimeError, OSError) as error:  # ~nobody; a name too long
        raise _not_found(f"{source} cannot be looked up: {first_line(error)}") from None
    if not exists and (reason := address_reason(source)) is not None:
        raise _not_found(reason)
    if is_gguf(source):
        if not exists:
            hub_id, colon, _ = source.partition(":")
            if not colon or hub_id.count("/") > 1 or hub_id.startswith((".", "/", "~")):
                raise _not_found(f"there is no file {source}; give a GGUF file, or one on the hub as hub-id:file.gguf")
            return None
        check_gguf(source, path)
        return path
    if not exists:
        if source.startswith((".", "/", "~")) or source.count("/") > 1:
            raise _not_found(f"there is no folder {source}; give a Hugging Face checkpoint: a folder or a hub id")
        return None
    check_folder(source, path)
    return path


def download(source: str, wanted: list[str]) -> Path:
    """The folder of a hub id, with the files that `wanted` names. Raises `CheckpointError`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # the build shows its own
    try:
        return Path(snapshot_download(source, allow_patterns=wanted, ignore_patterns=UNWANTED))
    except Exception as error:  # network, permission and name errors, each of another type
        raise _not_found(
            f"{source} is no folder here, and it could not be downloaded from the hub: {hub_reason(error)}; check "
            "the path or name"
        ) from None


def is_gguf(source: str) -> bool:
    """By its name, or by how it begins: the files of Ollama's store have no suffix."""
    if source.lower().endswith(GGUF):
        return True
    try:
        return _magic(Path(source).expanduser()) == MAGIC
    except (RuntimeError, ValueError, OSError):
        return False


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(MAGIC))


def check_gguf(source: str, path: Path) -> None:
    if not path.is_file():
        raise _not_found(f"{source} is a folder; give a GGUF file")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name):
        raise CheckpointError(f"{source} is one part of several, which transformers cannot read; {INSTEAD}")
    for name in NEEDED:
        if find_spec(name) is None:
            raise MissingPackageError(name, "gguf")
    try:
        magic = _magic(path)
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror or error}") from None
    if magic != MAGIC:
        start = f"starts with {magic!r}" if magic else "is empty"
        raise CheckpointError(f"{source} is not a GGUF file: it {start}, expected {MAGIC!r}")


def check_folder(source: str, folder: Path) -> None:
    if not folder.is_dir():
        raise _not_found(
            f"{source} is a file; give the folder that holds config.json and *.safetensors, or a GGUF file"
        )
    refuse_adapter(source, folder)
    if not (folder / "config.json").is_file():
        found = "is a bundle" if (folder / MANIFEST).is_file() else "has no config.json"
        raise _not_found(f"{source} {found}; give a Hugging Face checkpoint (a folder or a hub id) or a GGUF file")
    if not any(folder.glob(ALIKE)) and (files := sorted(folder.glob(f"*{GGUF}"))):
        raise CheckpointError(f"{source} has no {ALIKE}; give its GGUF file: {files[0]}")
    find_weights(source, folder)


def _not_found(message: str) -> CheckpointError:
    return CheckpointError(message, code="checkpoint_not_found")


def first_line(error: BaseException) -> str:
    """And the next one where it ends in a colon."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first
