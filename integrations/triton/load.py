"""Makes the model of an instance, as its configuration says: see `streams.py` and `whole.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...errors import SpecExportError
from .layout import OF
from .whole import WholeAnswers


class Model(Protocol):
    """A model of the Python backend: `execute` returns a response for each request, or None if it sends them itself."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None: ...

    def close(self) -> None: ...


def load_model(backend: Any, args: Mapping[str, str]) -> Model:
    """The model that `args` describes. backend: the module `triton_python_backend_utils`. args: those of `initialize`.

    Raises the backend's `TritonModelException`, with one line.
    """
    given = json.loads(args["model_config"]).get("parameters", {})
    parameters = {name: one["string_value"] for name, one in given.items()}
    if OF in parameters:
        return WholeAnswers(backend, parameters[OF])
    from .streams import Streams, load_session  # not at the top: a model for whole answers needs no runtime

    try:
        return Streams(backend, load_session(args, parameters), args)
    except SpecExportError as error:
        raise backend.TritonModelException(str(error)) from None
