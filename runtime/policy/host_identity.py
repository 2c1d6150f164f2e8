"""What costs and a policy were made for: the bundle, and the host."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from pathlib import Path

from ...bundle import Bundle, Manifest
from ...engines.catalogue import ENGINES
from ...engines.cpus import allowed_cpus, cpu_limit
from ...engines.onnxruntime.kernels import instruction_set
from ...errors import EngineError


def bundle_identity(bundle: Bundle, draft: str | None = None) -> str:
    """SHA-256 over target and draft, by default the first, their graphs and the contract; plans that are compiled again
    change nothing.
    """
    manifest = bundle.manifest
    pair = manifest.pair if draft is None else manifest.pair_with(draft)
    models = {
        role: [
            model.checkpoint_sha256,
            manifest.files[model.weights].sha256,
            {g: manifest.files[g].sha256 for g in model.graphs.values()},
        ]
        for role, model in pair.items()
    }
    contract = asdict(manifest.contract)
    for name in ("tree_rows", "cache_precision"):  # as before there were any
        if not contract[name]:
            del contract[name]
    return hashlib.sha256(json.dumps([models, contract], sort_keys=True).encode()).hexdigest()


def describe_host(manifest: Manifest, engine: str, device: int = 0) -> str:
    """The processor, its cores and vector extensions, and a container's limit on CPU time; for engines on a GPU the
    name of GPU `device` as well. On the CPU also the instruction set of specexport-kernels, if they run this bundle.
    """
    lines = _lines("/proc/cpuinfo")
    values = {
        key: next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
        for key in ("model name", "flags")
    }
    board = "".join(_lines("/proc/device-tree/model")).strip("\0 ")  # a Jetson's, whose processors have no name
    name = values["model name"] or board or platform.processor() or platform.machine()
    flags = set(values["flags"].split())
    extensions = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags]
    cores, limit = len(allowed_cpus()), cpu_limit()
    parts = [f"{name}, {cores} cores" + (f" limited to {limit:g}" if limit < cores else ""), *extensions]
    info = ENGINES.get(engine)  # costs.json may name an engine of a later version
    if info is not None and info.on_gpu:
        parts.append(_gpu(device))
    elif info is not None and "kernels" in manifest.target.graphs and (runs := instruction_set()):
        parts.append(f"with kernels for {runs}")
    return " ".join(parts)


def _gpu(device: int) -> str:
    from ...engines.cuda.driver import find_gpu

    try:
        return find_gpu(device).name
    except EngineError:  # an engine that gets along without cuda-bindings
        return "a GPU"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return []
