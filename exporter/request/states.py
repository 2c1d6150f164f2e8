"""Which engines run models whose layers keep states."""

from __future__ import annotations

from collections.abc import Iterable

from ...bundle import Precision
from ...engines.catalogue import ENGINES
from ...errors import UnsupportedModelError
from ..dialects import Dialect


def refuse_engines(model: str, engines: Iterable[str], dialects: Iterable[Dialect], precision: Precision) -> None:
    """Raises `UnsupportedModelError` where one of the engines cannot run a model that keeps states.

    model: its architecture, for the message. dialects: of the graphs that the engines ask for. precision: the
    bundle's.
    """
    keeps = f"{model} keeps recurrent or convolution states"
    if "rows" in dialects:
        raise UnsupportedModelError(
            f"{keeps}, which TensorRT before 10.15 cannot run yet; build it with --engine onnxruntime"
        )
    for engine in engines:
        runs = ENGINES[engine].states if engine in ENGINES else (precision,)
        if precision not in runs:
            raise UnsupportedModelError(
                f"{keeps}, which {engine} runs in {' and '.join(runs)} only; build it with --precision {runs[-1]}"
            )
