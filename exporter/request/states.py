"""Which engines run models whose layers keep states."""

from __future__ import annotations

from collections.abc import Iterable

from ...engines.catalogue import ENGINES
from ...errors import UnsupportedModelError
from ..dialects import Dialect


def engines_without_states(engines: Iterable[str]) -> list[str]:
    return [engine for engine in engines if engine in ENGINES and not ENGINES[engine].states]


def refuse_engines(model: str, engines: Iterable[str], dialects: Iterable[Dialect]) -> None:
    """Raises `UnsupportedModelError` where one of the engines cannot run a model that keeps states.

    model: its architecture, for the message. dialects: of the graphs that the engines ask for.
    """
    lacking = engines_without_states(engines)
    if "rows" in dialects:
        lacking.append("TensorRT before 10.15")
    if lacking:
        raise UnsupportedModelError(
            f"{model} keeps recurrent or convolution states, which {', '.join(lacking)} cannot run yet; build it with "
            "--engine onnxruntime"
        )
