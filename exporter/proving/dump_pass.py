"""One pass of a graph's proof as files that polygraphy reads: what the graph is fed, and what Hugging Face said.

For graphs that a builder gets wrong: `polygraphy run` compares backends over them, `polygraphy debug reduce` cuts the
graph down to the node at fault. Random inputs would not do: tokens, positions and cached rows must fit together.

Which model of a bundle is dumped. Imports nothing heavy, so that what cannot be dumped is refused at once.
"""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...bundle import Bundle, Contract, ModelSpec, Role
from ...engines.base import Arrays
from ...engines.onnxruntime.cpu import DIALECT, NUMPY_DTYPES, OrtDecoder
from ...engines.onnxruntime.trees import chain_inputs
from ...errors import BundleError, MissingPackageError, OutputError, ParameterError
from ...runtime.proofs.parity import (
    LOGIT_TOLERANCE,
    POISON,
    ReferenceStep,
    Rounding,
    arithmetic,
    load_reference,
    spread,
)
from .prove import widened


def choose_model(bundle: Bundle, model: str) -> tuple[Role, ModelSpec]:
    """model: `target`, `draft` for the first draft, or a draft's name.

    Raises `ParameterError` for a model that the bundle lacks, and for one whose layers keep states.
    """
    manifest = bundle.manifest
    name = manifest.first_draft if model == "draft" and model not in manifest.draft_names else model
    if name not in ("target", *manifest.draft_names):
        has = ", ".join(("target", *manifest.draft_names))
        raise ParameterError(f"the bundle has no model {model!r}; it has {has}", "model")
    spec = manifest.target if name == "target" else manifest.draft_called(name).model
    if spec.has_states:
        raise ParameterError(
            f"layers of the {model} keep states, which cannot be dumped; dump a model without them", "model"
        )
    return "target" if name == "target" else "draft", spec


INPUTS, OUTPUTS = "inputs.json", "outputs.json"
REFERENCE = "huggingface"  # a runner, in polygraphy's words


@dataclass(frozen=True)
class DumpedPass:
    """inputs: what the graph takes, by name. logits: `[1, rows, vocab] fp32` of the Hugging Face model, None for a pass
    that the proof does not compare. step: of so many `steps`, the first is 0. tolerance: how far the proof lets a logit
    be off, None for graphs that round activations, whose divergence is proved instead.
    """

    graph: Path
    dialect: str
    step: int
    steps: int
    tokens: int
    position: int
    inputs: Arrays
    logits: NDArray[np.float32] | None
    tolerance: float | None

    def commands(self, folder: Path) -> list[str]:
        """Ways to go on, for a shell. folder: where the files are."""
        loads = f"--load-inputs {shlex.quote(str(folder / INPUTS))}"
        compares = f" --load-outputs {shlex.quote(str(folder / OUTPUTS))}" if self.logits is not None else ""
        backends = ("--onnxrt",) if self.dialect == DIALECT else ("--onnxrt", "--trt")  # with operators of its own
        within = f" --atol logits:{self.tolerance:.2g}" if self.tolerance is not None else ""
        run = f"polygraphy run {shlex.quote(str(self.graph))}"
        return [f"{run} {backend} {loads}{compares}{within}" for backend in backends]


def dump_pass(bundle: Bundle, model: str = "target", dialect: str | None = None, step: int | None = None) -> DumpedPass:
    """Run the proof of one graph up to `step`, on ONNX Runtime, and take what that pass is fed.

    model: `target`, `draft`, or the name of a draft. dialect: of the graph, by default the model's first. step: by
    default the last. Raises `ParameterError` for a model, dialect or step that the bundle lacks, and for models whose
    layers keep states.
    """
    role, spec = choose_model(bundle, model)
    dialect = dialect or next(iter(spec.graphs))
    if dialect not in spec.graphs:
        raise ParameterError(
            f"the {model} has no graph in the dialect {dialect!r}; it has {', '.join(spec.graphs)}", "dialect"
        )
    reference = load_reference(bundle.path(spec.reference))
    step = len(reference) - 1 if step is None else step
    if not 0 <= step < len(reference):
        raise ParameterError(
            f"step is {step}; the proof of the {model} has the steps 0 to {len(reference) - 1}", "step"
        )
    contract, entry = bundle.manifest.contract.of(role), reference[step]
    caches = _caches(bundle.path(spec.graphs[dialect]), spec, contract, dialect, reference[: step + 1])
    logits = entry.logits[None] if entry.step.rows else None
    kind = arithmetic(spec, contract)
    tolerance = None if isinstance(kind, Rounding) else LOGIT_TOLERANCE[kind] * spread(reference)
    return DumpedPass(
        bundle.path(spec.graphs[dialect]),
        dialect,
        step,
        len(reference),
        len(entry.step.tokens),
        entry.step.position,
        _inputs(spec, contract, dialect, entry) | caches,
        logits,
        tolerance,
    )


def write_pass(dumped: DumpedPass, folder: Path) -> None:
    """`inputs.json` and, where there are logits, `outputs.json`, in a folder that may exist.

    Raises `MissingPackageError` without polygraphy, `OutputError` if there can be no such folder.
    """
    try:
        from polygraphy.comparator import RunResults
        from polygraphy.comparator.struct import IterationResult
        from polygraphy.json import save_json
        from polygraphy.logger import G_LOGGER
    except ModuleNotFoundError:
        raise MissingPackageError("polygraphy", "debug") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made a folder ({error.strerror}); give another --output") from None
    with G_LOGGER.verbosity(G_LOGGER.ERROR):
        save_json([dict(dumped.inputs)], str(folder / INPUTS))
        if dumped.logits is not None:
            results = RunResults()
            results.append((REFERENCE, [IterationResult({"logits": dumped.logits}, runner_name=REFERENCE)]))
            results.save(str(folder / OUTPUTS))


def _inputs(spec: ModelSpec, contract: Contract, dialect: str, entry: ReferenceStep) -> dict[str, NDArray[np.generic]]:
    """All but the caches; see `Contract`."""
    step = entry.step
    inputs: dict[str, NDArray[np.generic]] = {
        "tokens": step.tokens[None].astype(np.int64),
        "position": np.array([step.position], np.int64),
    }
    if dialect != DIALECT:
        inputs["columns"] = np.arange(contract.span(step.end), dtype=np.int64)
    elif spec.features:
        inputs["head"] = np.zeros(spec.features + 1, np.float32)
    if contract.tree_rows:
        inputs |= chain_inputs(len(step.tokens))
    return inputs


def _caches(
    graph: Path, spec: ModelSpec, contract: Contract, dialect: str, entries: list[ReferenceStep]
) -> dict[str, NDArray[np.generic]]:
    """`past.{i}.key/value`, as they were before the last of the entries.

    What ONNX Runtime's CPU provider does not run is widened to fp32, as for the proof, and its rows rounded.
    """
    if contract.precision not in NUMPY_DTYPES:
        raise BundleError(
            f"{graph} is in {contract.precision}, for which numpy has no type; build with --precision fp16 or fp32"
        )
    half = contract.precision != "fp32" or (spec.format != "float" and dialect != DIALECT)
    with widened(graph) if half else nullcontext(graph) as path:
        decoder = OrtDecoder(path, spec, replace(contract, precision="fp32"), dialect=dialect)
        decoder.overwrite_rows(0, 0.0)
        for entry in entries:
            if entry.step.poison:
                decoder.overwrite_rows(entry.step.position, POISON)
            if entry is not entries[-1]:
                decoder.step(entry.step.tokens.tolist(), entry.step.position)
        rows = decoder.read_rows(contract.capacity)
        decoder.close()
    names = [name for name, _ in spec.cache_names("past")]
    return {name: row[None].astype(NUMPY_DTYPES[contract.precision]) for name, row in zip(names, rows, strict=True)}
