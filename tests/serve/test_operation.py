"""The process: start, keys, signals, logs, metrics that add up, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from specexport.cli.serve import serve
from specexport.errors import EngineError, ParameterError
from specexport.serve.listen import GRACE, Listening
from specexport.serve.settings import LOOPBACK, ServerSettings, check_listening
from support.refusals import refused, says
from support.serving import ServerProcess, wait_for

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "a secret of mine"}]
KEYS = ("first-key", "second-key")


def request_bytes(port: int, **fields: Any) -> bytes:
    body = json.dumps({"messages": HELLO, "temperature": 0, "stop_token_ids": [], **fields}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def logged(process: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_ends_before_the_process_does(served_bundle: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = ServerProcess(served_bundle, tmp_path / "log")
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as stream:
        stream.sendall(request_bytes(process.port, max_tokens=1000, stream=True))
        found = stream.recv(100)
        process.process.send_signal(number)
        while part := stream.recv(100_000):
            found += part
    assert b"data: [DONE]" in found
    assert process.left() == 0
    assert [row["message"] for row in logged(process) if row["logger"] == "specexport.serve"] == ["draining"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_until_it_has_ended(served_bundle: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = ServerProcess(served_bundle, tmp_path / "log")
    while process.process.poll() is None:
        process.process.send_signal(number)
        sleep(0.01)
    assert process.left() in (0, 1)
    assert "Traceback" not in process.log.read_text()


def test_what_cannot_end_in_time_ends_with_an_error(served_bundle: Path, tmp_path: Path) -> None:
    process = ServerProcess(served_bundle, tmp_path / "log", "--drain-timeout", "0")
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as stream:
        stream.sendall(request_bytes(process.port, max_tokens=1100, stream=True, specexport={"speculate": False}))
        found = stream.recv(100)
        process.process.send_signal(signal.SIGTERM)
        while part := stream.recv(100_000):
            found += part
    assert b'"code":"shutting_down"' in found
    assert b"[DONE]" not in found
    assert process.left() == 1


def test_an_address_that_is_taken(served_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "specexport", "serve", str(served_bundle), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: cannot listen on 127.0.0.1 port {port}: ")
    assert len(done.stderr.splitlines()) == 1


def test_beyond_loopback_only_with_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with refused(ParameterError, "--no-auth", field="host"):
            check_listening(host, ServerSettings())
        check_listening(host, ServerSettings(api_keys=("k",)))
        check_listening(host, ServerSettings(), without_keys=True)
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        check_listening(host, ServerSettings())
    found = CliRunner().invoke(serve, ["none.bundle", "--host", "0.0.0.0", "--port", "0"])
    assert isinstance(found.exception, ParameterError)  # before the bundle is looked for


@pytest.mark.parametrize("where", [("--host", "300.1.1.1"), ("--host", "192.0.2.1"), ("--uds", "no/socket")])
def test_where_nothing_can_listen_is_told_before_anything_else(where: tuple[str, str]) -> None:
    error = CliRunner().invoke(serve, ["none.bundle", *where]).exception
    assert isinstance(error, EngineError)
    assert error.code == "cannot_listen"


def test_a_unix_socket_ready_with_its_costs_measured(served_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = ServerProcess(served_bundle, tmp_path / "log", "--uds", str(path), env=env)
    assert len([*(tmp_path / "cache/specexport/costs").iterdir()]) == 1, "before the first request"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    taken = CliRunner().invoke(serve, ["none.bundle", "--uds", str(path)]).exception
    assert isinstance(taken, EngineError)
    says(str(taken), "--uds")
    assert path.is_socket()
    assert process.end() == 0
    assert not path.exists()


def test_a_unix_socket_that_a_server_left(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    Listening(uds=path).check()
    assert not path.exists()


@pytest.mark.parametrize("closed", [True, False], ids=["no stdout", "a pipe without a reader"])
def test_nobody_reads_that_it_is_ready(closed: bool, served_bundle: Path, tmp_path: Path) -> None:
    """A supervisor may have closed stdout."""
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "specexport", "serve", str(served_bundle), "--uds", str(path)]
    wrapped = ["sh", "-c", 'exec "$@" >&-', "sh", *command] if closed else command
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(wrapped, stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(writer)
        wait_for(lambda: path.is_socket() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


@pytest.fixture(scope="module")
def guarded(served_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two keys, one from a file and one from the environment."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text(f"{KEYS[0]}\n\n", encoding="utf-8")
    options = ("--api-key-file", str(folder / "keys"), "--cors-origin", "https://app.example")
    process = ServerProcess(served_bundle, folder / "log", *options, env={"SPECEXPORT_API_KEY": KEYS[1]})
    yield process
    assert process.end() == 0
    text = process.log.read_text(encoding="utf-8")
    assert not any(key in text for key in (*KEYS, "wrong-key"))


PATHS = [("POST", CHAT), ("POST", "/v1/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
         ("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("GET", "/version"), ("GET", "/metrics"),
         ("GET", "/openapi.json"), ("GET", "/nothing"), ("OPTIONS", CHAT)]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_no_way_in_without_a_key(guarded: ServerProcess, method: str, path: str) -> None:
    body = {"messages": HELLO, "prompt": "a", "tokens": [1]} if method == "POST" else None
    wrong = [{}, {"Authorization": "Bearer wrong-key"}, {"Authorization": "Bearer "}, {"x-api-key": "wrong-key"},
             {"api-key": "wrong-key"},
             {"Authorization": f"Basic {KEYS[0]}"}, {"Authorization": f"Bearer {KEYS[0]}x"}]  # fmt: skip
    for headers in wrong:
        status, told, answer = guarded.ask(method, path, body, headers)
        assert (status, json.loads(answer)["error"]["code"]) == (401, "invalid_api_key")
        assert told["www-authenticate"] == "Bearer"


def test_one_key_learns_nothing_of_anothers_prompts(guarded: ServerProcess) -> None:
    def cached(key: str) -> int:
        fields = {"messages": HELLO, "max_tokens": 1}
        status, _, body = guarded.ask("POST", CHAT, fields, {"Authorization": f"Bearer {key}"})
        assert status == 200
        return int(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached(KEYS[0])
    assert cached(KEYS[0]) > 0
    assert cached(KEYS[1]) == 0
    assert cached(KEYS[0]) > 0  # its own rows have waited


def test_pages_of_other_origins(guarded: ServerProcess, server: ServerProcess) -> None:
    key = {"Authorization": f"Bearer {KEYS[0]}"}
    status, headers, _ = guarded.ask("OPTIONS", CHAT, headers={"Origin": "https://app.example"})
    assert (status, headers["access-control-allow-origin"]) == (204, "https://app.example")
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = guarded.ask("GET", "/v1/models", headers=key | {"Origin": "https://app.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")
    for process, extra in ((guarded, key), (server, {})):
        for origin in ("https://evil.example", "null", "https://app.example.evil.example"):
            status, headers, body = process.ask("GET", "/v1/models", headers=extra | {"Origin": origin})
            assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden_origin")
            assert "access-control-allow-origin" not in headers
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.ask("GET", "/v1/models", headers=own)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "0.0.0.0"])
def test_another_host_name(server: ServerProcess, guarded: ServerProcess, host: str) -> None:
    status, _, body = server.ask("GET", "/v1/models", headers={"Host": host})
    assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden_host")
    for probe in ("/health", "/ready"):  # by address
        assert server.ask("GET", probe, headers={"Host": host})[0] == 200
    if host:
        key = {"x-api-key": KEYS[0]}
        assert guarded.ask("GET", "/v1/models", headers={"Host": host, **key})[0] == 200
    for own in ("localhost", "localhost:99", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert server.ask("GET", "/v1/models", headers={"Host": own})[0] == 200


def test_named_hosts_are_added_to_loopbacks() -> None:
    assert ServerSettings().hosts == LOOPBACK
    assert ServerSettings(api_keys=("k",)).hosts is None
    for keys in ((), ("k",)):
        named = ServerSettings(api_keys=keys, allowed_hosts=("My.Host", "192.0.2.1"))
        assert named.hosts == (*LOOPBACK, "my.host", "192.0.2.1")
        assert ServerSettings(api_keys=keys, allowed_hosts=("my.host", "*")).hosts is None


def test_logs_say_what_happened_and_nothing_of_what_was_said(served_bundle: Path, tmp_path: Path) -> None:
    process = ServerProcess(served_bundle, tmp_path / "log")
    answer = process.chat(messages=HELLO, max_tokens=12, temperature=0, user="somebody")
    process.ask("GET", "/a%0a%7b%22level%22%3a%22fake%22%7d")
    process.ask("POST", CHAT, b'{"messages": "a secret of mine"}')
    assert process.end() == 0
    rows = logged(process)
    assert [(row["status"], row.get("error")) for row in rows if "status" in row] == [
        (200, None),
        (404, "not_found"),
        (400, "invalid_value"),
    ]
    assert all(row["level"] == "info" for row in rows)
    assert (rows[0]["prompt_tokens"], rows[0]["completion_tokens"]) == (answer["usage"]["prompt_tokens"], 12)
    text = process.log.read_text(encoding="utf-8")
    assert "secret" not in text
    assert answer["choices"][0]["message"]["content"][:6] not in text


def sockets_of(process: ServerProcess) -> int:
    found = 0
    for entry in Path(f"/proc/{process.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += str(entry.readlink()).startswith("socket:")
    return found


def memory_of(process: ServerProcess) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_counters_are_the_sums_of_the_answers(server: ServerProcess) -> None:
    before = server.metrics()
    sums: dict[str, float] = {}
    options: list[dict[str, Any]] = [{}, {"drafter": "ngram"}, {"speculate": False}, {"num_draft_tokens": 1}]
    for place in range(12):
        fields = {
            "messages": HELLO,
            "max_tokens": 10 + place,
            "specexport": options[place % 4],
            "temperature": place % 2,
        }
        if place % 3:
            answer = server.chat(**fields)
        else:
            answer = server.events(CHAT, fields | {"stream_options": {"include_usage": True}})[-1]
        row, usage = answer["metrics"]["speculative_decoding"], answer["usage"]
        for name, value in (
            ("prompt_tokens", usage["prompt_tokens"]),
            ("generation_tokens", usage["completion_tokens"]),
            ("prefix_cache_hits", usage["prompt_tokens_details"]["cached_tokens"]),
            ("spec_decode_num_drafts", row["num_spec_steps"]),
            ("spec_decode_num_drafts_by_drafter", row["num_spec_steps"]),
            ("spec_decode_num_draft_tokens", row["num_draft_tokens"]),
            ("spec_decode_num_accepted_tokens", row["num_accepted_draft_tokens"]),
            ("spec_decode_num_accepted_tokens_per_pos", row["num_accepted_draft_tokens"]),
            ("request_success", 1),
        ):
            sums[name] = sums.get(name, 0) + value
    after = server.metrics()
    grown = {name: after[f"specexport:{name}_total"] - before.get(f"specexport:{name}_total", 0) for name in sums}
    assert grown == sums


def test_metrics_have_their_names_whatever_format_is_preferred(server: ServerProcess) -> None:
    prometheus_2 = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    status, headers, body = server.ask("GET", "/metrics", headers={"Accept": prometheus_2})
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    assert samples
    assert all(sample.name.startswith("specexport:") for sample in samples)


def test_every_metric_is_described(server: ServerProcess) -> None:
    """By name and type, as docs/http.md has them."""
    from reference_pages.http_page import known_metrics

    text = server.ask("GET", "/metrics")[2].decode()
    found = {(name, kind) for name, kind in re.findall(r"# TYPE specexport:(\w+) (\w+)", text)}
    assert {one for one in found if not one[0].endswith("_created")} == {one[:2] for one in known_metrics()}


def storm(process: ServerProcess, seed: int, count: int) -> None:
    """Connects that say nothing, halves of requests, aborted streams and answers, wrong and right requests."""
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.randrange(6)
        fields = {"max_tokens": chance.randrange(1, 60), "stream": chance.random() < 0.5}
        if kind == 5:
            process.ask("POST", CHAT, {"messages": HELLO, **fields})
            continue
        with socket.create_connection(("127.0.0.1", process.port), timeout=60) as connection:
            data = request_bytes(process.port, **fields)
            if kind == 1:
                connection.sendall(data[: chance.randrange(len(data))])
            elif kind == 2:
                connection.sendall(data)
            elif kind == 3:
                connection.sendall(data)
                connection.recv(chance.randrange(1, 500))
            elif kind == 4:
                connection.sendall(os.urandom(chance.randrange(1, 200)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.nightly)])
def test_a_storm_leaves_nothing_behind(served_bundle: Path, tmp_path: Path, count: int) -> None:
    options = ("--max-queue", "64", "--max-queue-per-key", "64", "--prompt-cache-mib", "1")
    process = ServerProcess(served_bundle, tmp_path / "log", *options)
    storm(process, 0, 60)  # what is made once
    wait_for(process.idle)
    memory, sockets = memory_of(process), sockets_of(process)
    threads = [threading.Thread(target=storm, args=(process, seed, count // 4)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(process.idle)
    wait_for(lambda: sockets_of(process) <= sockets)
    assert memory_of(process) - memory < 20e6
    assert process.chat(messages=HELLO, max_tokens=4, temperature=0)["usage"]["completion_tokens"] == 4
    assert process.end() == 0
    assert {row["level"] for row in logged(process)} <= {"info", "warning"}


def test_the_container_file_starts_what_there_is() -> None:
    """Without root, with a health check that asks the port it listens on, and options that the command has."""
    text = (Path(__file__).parents[2] / "examples/serve/Containerfile").read_text()
    lines = dict(line.split(" ", 1) for line in text.splitlines() if line[:1].isupper())
    command, *given = json.loads(lines["ENTRYPOINT"])[1:]
    assert command == serve.name
    parsed = serve.make_context("serve", given).params
    assert (str(parsed["bundle"]), parsed["host"]) == ("/bundle", "0.0.0.0")
    health = json.loads(lines["HEALTHCHECK"].partition("CMD ")[2])
    assert f":{parsed['port']}/health" in health[-1]
    assert lines["EXPOSE"] == str(parsed["port"])
    assert f"useradd --system --create-home {lines['USER']}" in text
    assert "--constraint /wheels/constraints.txt /wheels/specexport_kernels-*.whl" in lines["RUN"]
    cache = f"/home/{lines['USER']}/.cache/specexport"  # both made for the user, and named as the volume to mount
    assert f"install -d -o {lines['USER']} {cache}" in text
    assert f":{cache} " in text


def test_the_systemd_unit_waits_for_a_drain() -> None:
    """And has nothing that is newer than systemd 247, such as `%d`."""
    text = (Path(__file__).parents[2] / "examples/serve/specexport.service").read_text()
    command = text.partition("ExecStart=")[2].partition("\nLoad")[0].replace("\\\n", " ")
    _, name, *given = command.replace("$SPECEXPORT_OPTIONS", "").split()
    assert (name, "%d" in text) == (serve.name, False)
    found = serve.make_parser(serve.make_context("serve", ["--help"], resilient_parsing=True)).parse_args(given)[0]
    assert found["api_key_file"] == "${CREDENTIALS_DIRECTORY}/keys"
    defaults = {param.name: param.default for param in serve.params}
    stop = int(text.partition("TimeoutStopSec=")[2].partition("\n")[0])
    assert stop > defaults["drain_delay"] + defaults["drain_timeout"] + GRACE
