"""Stands in for Triton's module `triton_python_backend_utils` and for the server around it.

What Triton does not forgive is an `AssertionError`: a response behind the last one, a request without a last one, a
tensor that the model's configuration does not name.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

FINAL = 1
INVALID_ARG, INTERNAL = "INVALID_ARG", "INTERNAL"


class TritonModelException(Exception):  # noqa: N818 - its name
    pass


class TritonError:
    INVALID_ARG, INTERNAL = INVALID_ARG, INTERNAL

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    def __init__(self, name: str, data: np.ndarray) -> None:
        assert data.shape == (1,)
        assert data.dtype == np.object_
        assert isinstance(data[0], bytes)
        self._name, self._data = name, data

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._data


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    @property
    def texts(self) -> dict[str, str]:
        return {tensor.name(): tensor.as_numpy()[0].decode() for tensor in self._tensors}


class Sender:
    """sent: calls `on_sent` with each response's place, behind it."""

    def __init__(self, on_sent: Callable[[int], object] = lambda place: None) -> None:
        self.responses: list[InferenceResponse] = []
        self.ended = False
        self.left, self.told = threading.Event(), threading.Event()  # the client, and who asked
        self._on_sent = on_sent

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert not self.ended, "a response behind the last one"
        self.responses.append(response)
        self.ended = flags == FINAL
        self._on_sent(len(self.responses))

    def is_cancelled(self) -> bool:
        if self.left.is_set():
            self.told.set()
        return self.left.is_set()


class Request:
    """What a model is given. options: a JSON text, or what becomes one."""

    def __init__(self, text: str | bytes | None, options: Any = None, sender: Sender | None = None) -> None:
        written = options if isinstance(options, str | bytes | None) else json.dumps(options)
        given = {"text_input": text, "options": written}
        self._tensors = {
            name: Tensor(name, np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_))
            for name, value in given.items()
            if value is not None
        }
        self.sender = sender or Sender()

    def inputs(self) -> list[Tensor]:
        return list(self._tensors.values())

    def get_response_sender(self) -> Sender:
        return self.sender


class Metric:
    def __init__(self, values: dict[str, float], name: str) -> None:
        self._values, self._name = values, name
        values[name] = 0.0

    def increment(self, value: float) -> None:
        assert value >= 0
        self._values[self._name] += value


class FakeTriton:
    """models: those that are loaded, by name. counters: values of metrics by their names."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}
        self.counters: dict[str, float] = {}
        self.module = ModuleType("triton_python_backend_utils")
        vars(self.module).update(
            TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
            TritonModelException=TritonModelException,
            TritonError=TritonError,
            Tensor=Tensor,
            InferenceResponse=InferenceResponse,
            InferenceRequest=self._request_within,
            MetricFamily=self._family(),
            get_input_tensor_by_name=lambda request, name: request._tensors.get(name),
        )

    def load(self, repository: Path, name: str, kind: str = "CPU", device: int = 0, instance: int = 0) -> Any:
        """The model of a written repository, imported as Triton does. Raises what its `model.py` raises."""
        folder = repository / name
        with self._imported(folder / "1/model.py") as module:
            model = module.TritonPythonModel()
        config = (folder / "config.pbtxt").read_text(encoding="utf-8")
        counts = [int(found) for found in re.findall(r"\{ count: (\d+)", config)]
        pairs = re.findall(r'^parameters \{ key: "(\w+)" value \{ string_value: "(.*)" \} \}$', config, re.MULTILINE)
        given = {
            "parameters": {key: {"string_value": value} for key, value in pairs},
            "instance_group": [{"count": count} for count in counts],
        }
        model.initialize(
            {
                "model_config": json.dumps(given),
                "model_name": name,
                "model_repository": str(folder),
                "model_version": "1",
                "model_instance_kind": kind,
                "model_instance_name": f"{name}_0_{instance}",
                "model_instance_device_id": str(device),
            }
        )
        self.models[name] = model
        return model

    def ask(self, name: str, *requests: Request) -> list[list[InferenceResponse]]:
        """All responses to each of the requests."""
        answers = self.models[name].execute(requests)
        if answers is not None:
            assert len(answers) == len(requests)
            return [[answer] for answer in answers]
        assert all(request.sender.ended for request in requests), "a request without a last response"
        return [request.sender.responses for request in requests]

    @contextmanager
    def _imported(self, file: Path) -> Iterator[ModuleType]:
        before = sys.path.copy()
        spec = importlib.util.spec_from_file_location("model", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module.__name__] = self.module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[self.module.__name__]
            sys.path[:] = before

    def _request_within(self, model_name: str, inputs: list[Tensor], requested_output_names: list[str]) -> Any:
        def run(decoupled: bool) -> Iterator[InferenceResponse]:
            assert decoupled
            assert requested_output_names == ["text_output", "finish_reason", "statistics"]
            within = Request(None)
            within._tensors = {tensor.name(): tensor for tensor in inputs}
            return iter(self.ask(model_name, within)[0])

        return SimpleNamespace(exec=run)

    def _family(self) -> type:
        values = self.counters

        class MetricFamily:
            COUNTER = "counter"

            def __init__(self, name: str, description: str, kind: str) -> None:
                assert description
                assert kind == "counter"
                self._name = name

            def Metric(self, labels: dict[str, str]) -> Metric:  # noqa: N802 - Triton's
                assert set(labels) == {"model", "instance"}
                return Metric(values, self._name)

        return MetricFamily
