"""What the adapter makes of its config, and what a replica does, with a double of Ray."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from specexport.errors import EngineError, ParameterError
from specexport.runtime.session import Session
from support.doubles import FakeDecoder, fake_session
from support.fake_ray import FakeDeployment, FakeRay
from support.refusals import refused

yaml = pytest.importorskip("yaml")
EXAMPLES = Path(__file__).parents[2] / "examples/scale_out"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(monkeypatch)


def built(**args: Any) -> FakeDeployment:
    found = import_module("specexport.integrations.ray").build({"bundles": "/models/pair.bundle", **args})
    assert isinstance(found, FakeDeployment)
    return found


def test_what_ray_is_told(ray: FakeRay) -> None:
    options = built(replicas=3, threads=2, gpus=1, max_queued_requests=7, health_period=5, drain_timeout=60).chosen
    assert options["num_replicas"] == 3
    assert options["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1}
    assert (options["max_ongoing_requests"], options["max_queued_requests"]) == (2, 7)
    assert (options["health_check_period_s"], options["graceful_shutdown_timeout_s"]) == (5, 60)
    assert "autoscaling_config" not in options


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"bundle": "pair.bundle"}, "args.bundle"),
        ({"bundles": []}, "args.bundles"),
        ({"bundles": 3}, "args.bundles"),
        ({"replicas": 0}, "args.replicas"),
        ({"replicas": 2, "autoscaling": {"max_replicas": 4}}, "args.replicas"),
        ({"autoscaling": {}}, "args.autoscaling.max_replicas"),
        ({"gpus": -1}, "args.gpus"),
        ({"server": {"max_token": 5}}, "args.server.max_token"),
        ({"server": {"max_tokens": "5"}}, "args.server.max_tokens"),
        ({"server": {"max_tokens": 0}}, "max_tokens"),
        ({"server": {"api_keys": ["secret"]}}, "args.server.api_keys"),
    ],
    ids=json.dumps,
)
def test_args_that_cannot_be(wrong: dict[str, Any], place: str, ray: FakeRay) -> None:
    with refused(
        ParameterError,
        field=place,
    ):
        built(**wrong)


def test_keys_come_from_the_host_and_never_from_the_config(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    config = built(api_key_file=str(file)).bound[0]
    with refused(ParameterError, field="api_key_file"):
        config.keys()
    file.write_text("\n")
    with refused(ParameterError, "api_key_file", field="api_keys"):
        config.keys()
    file.write_bytes(b"secret\n\n\xff\n")
    with refused(ParameterError, "api_key_file", "ASCII", field="api_keys"):
        config.keys()
    file.write_text("one\n\ntwo\n")
    monkeypatch.setenv("SPECEXPORT_API_KEY", "three")
    assert config.keys() == ("one", "two", "three")
    assert built().bound[0].keys() == ("three",)


def test_each_rank_has_its_bundle_under_one_name(ray: FakeRay) -> None:
    exact, quantized = "a/pair-fp32.bundle", "a/pair-int8.bundle"
    config = built(bundles=[exact, quantized], replicas=3).bound[0]
    assert [config.bundle_of(rank) for rank in range(3)] == [exact, quantized, exact]
    assert config.settings("r").model == "pair-fp32"
    assert built(model="pair").bound[0].settings("r").model == "pair"


class Replicas:
    """Replicas over fake sessions, as Ray makes them. loaded: the arguments of each `load`."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.loaded: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.root, self.target = root, FakeDecoder()
        self.made: list[Any] = []
        patch.setattr(import_module("specexport.integrations.ray.application"), "load", self._load)

    def _load(self, *arguments: Any, **options: Any) -> Session:
        self.loaded.append((arguments, options))
        return fake_session(self.root / str(len(self.loaded)), self.target, None)

    def new(self, **args: Any) -> Any:
        deployment = built(**args)
        self.made.append(deployment.made_of(*deployment.bound))
        return self.made[-1]

    def close(self) -> None:
        for replica in self.made:
            replica._service.sessions.thread.stop()
            replica.session.close()


@pytest.fixture
def replicas(ray: FakeRay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Replicas]:
    found = Replicas(monkeypatch, tmp_path)
    yield found
    found.close()


async def ask(replica: Any, path: str, fields: dict[str, Any] | None = None) -> tuple[int, dict[str, str], bytes]:
    lines = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = dict(type="http", method="GET" if fields is None else "POST", path=path, headers=lines, root_path="")
    scope |= dict(query_string=b"", scheme="http", server=("localhost", 80), client=("127.0.0.1", 1))
    asked = [{"type": "http.request", "body": b"" if fields is None else json.dumps(fields).encode()}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return asked.pop() if asked else await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: Any) -> None:
        sent.append(message)

    await replica.__serve_build_asgi_app__()(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(part["body"] for part in sent[1:])


def test_an_answer_says_which_replica_and_which_bundle(ray: FakeRay, replicas: Replicas) -> None:
    ray.rank = 1
    replica = replicas.new(
        bundles=["x.bundle", "y.bundle"], replicas=2, model="pair", engine="onnxruntime", threads=3, prompt_cache_mib=2
    )
    assert replicas.loaded == [(("y.bundle", "onnxruntime", 3), {"prompt_cache_bytes": 2 << 20, "chat_template": None})]
    status, headers, body = asyncio.run(ask(replica, "/v1/completions", {"prompt": "Hello", "max_tokens": 3}))
    answer = json.loads(body)
    assert (status, answer["model"], headers["x-specexport-replica"]) == (200, "pair", "replica1")
    assert answer["system_fingerprint"].startswith("fp_")


def test_a_replica_whose_engine_is_lost_is_not_healthy(replicas: Replicas) -> None:
    replica = replicas.new()
    replica.check_health()
    replicas.target.logits_after = lambda context: 1 / 0  # type: ignore[assignment,method-assign]
    for _ in range(3):
        replica.check_health()
        assert asyncio.run(ask(replica, "/v1/completions", {"prompt": "Hello", "max_tokens": 3}))[0] == 500
    with refused(EngineError, "replica"):
        replica.check_health()


def test_rays_metrics_are_the_replicas(ray: FakeRay, replicas: Replicas) -> None:
    replica = replicas.new(model="pair")
    for count in (3, 5):
        asyncio.run(ask(replica, "/v1/completions", {"prompt": "Hello", "max_tokens": count}))
        replica.check_health()
    own = (("model_name", "pair"),)
    assert ray.sent["specexport_generation_tokens", own] == 8  # of both, each counted once
    assert ray.sent["specexport_request_success", (("finished_reason", "length"), *own)] == 2
    assert ray.sent["specexport_num_requests_running", own] == 0
    assert ray.sent["specexport_request_generation_tokens_count", own] == 2
    assert ray.sent["specexport_request_generation_tokens_sum", own] == 8
    assert ray.sent["specexport_request_generation_tokens_bucket", (("le", "5.0"), *own)] == 2
    assert ray.sent["specexport_request_generation_tokens_bucket", (("le", "2.0"), *own)] == 0
    assert not any(name.endswith("_created") for name, _ in ray.sent)


def test_without_ray_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['ray'] = None\nfrom specexport.errors import EngineError\n"
    code += "try: import specexport.integrations.ray\nexcept EngineError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "specexport[ray]" in done.stdout


@pytest.mark.parametrize("name", ["ray.yaml", "kuberay.yaml"])
def test_the_examples_are_configs(ray: FakeRay, name: str) -> None:
    """Ray reads the rest; `args` are ours."""
    found = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    if name == "kuberay.yaml":
        found = yaml.safe_load(found["spec"]["serveConfigV2"])
    for application in found["applications"]:
        module, function = application["import_path"].split(":")
        assert callable(getattr(import_module(module), function))
        assert built(**application["args"]).bound
