"""`/openapi.json` against the server: schemathesis makes requests of it, and none may end in a 5xx."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.serve import ServerSettings
from specexport.serve.app import OPERATIONS
from specexport.serve.wire.openapi import describe
from support.serving import ServerProcess, served, slow_session

CHECKS = "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "examples"), [("fuzzing", 12), pytest.param("coverage,fuzzing", 50, marks=pytest.mark.nightly)]
)
def test_no_request_ends_in_a_server_error(served_bundle: Path, tmp_path: Path, phases: str, examples: int) -> None:
    command = Path(sys.executable).parent / "schemathesis"
    if not command.exists():
        pytest.skip("schemathesis is not installed")
    process = ServerProcess(served_bundle, tmp_path / "log", "--max-tokens", "4")
    options = ["--max-examples", str(examples), "--seed", "1", "--phases", phases, "--checks", CHECKS, "--no-color"]
    address = f"http://127.0.0.1:{process.port}/openapi.json"
    done = subprocess.run(
        [command, "run", address, *options, "--generation-allow-x00", "false"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert process.end() == 0
    assert "traceback" not in process.log.read_text(encoding="utf-8")


def test_it_names_every_field_of_a_request(server: ServerProcess) -> None:
    found = json.loads(server.ask("GET", "/openapi.json")[2])
    chat = found["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    assert {"temperature", "prediction", "specexport", "logit_bias", "max_completion_tokens"} <= set(chat["properties"])
    assert all(field["description"] for field in chat["properties"].values())


def test_it_has_every_path_with_its_method() -> None:
    paths = describe(OPERATIONS)["paths"]
    described = {(method, path) for path, one in paths.items() for method in one if method != "parameters"}
    assert described == {(one.method.lower(), one.path.replace(":path}", "}")) for one in OPERATIONS}


@pytest.mark.parametrize("public", [False, True])
def test_where_keys_are_needed_it_says_so(tmp_path: Path, public: bool) -> None:
    settings = ServerSettings(api_keys=("key",), public_metrics=public)
    with served(slow_session(tmp_path, Contract(64, 4, 8, "fp32"))[0], settings) as client:
        found = json.loads(client.ask("GET", "/openapi.json", headers={"api-key": "key"})[2])
        schemes = found["components"]["securitySchemes"]
        assert found["security"] == [{name: []} for name in schemes]
        for path, one in found["paths"].items():
            if "get" in one:
                opened = client.ask("GET", path.replace("{name}", "app.js"))[0] != 401
                assert opened == (one["get"].get("security") == []), path
            else:
                assert client.ask("POST", path, {})[0] == 401
                assert "security" not in one["post"]
    assert "security" not in describe(OPERATIONS)
