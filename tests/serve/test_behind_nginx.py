"""The configuration of docs/scale-out.md in a real nginx, where that is installed."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.serve import ServerSettings
from support.doubles import FakeDecoder, fake_session
from support.serving import PATIENCE, Client, served, wait_for

CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
DOCS = Path(__file__).resolve().parents[2] / "docs/scale-out.md"
PROGRAM = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed")


@contextmanager
def nginx(folder: Path, *replicas: Client) -> Iterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    block = re.findall(r"```nginx\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    for documented, used in zip((8000, 8001, 8002), (port, *(one.port for one in replicas)), strict=True):
        block, count = re.subn(f"127.0.0.1:{documented}", f"127.0.0.1:{used}", block)
        assert count == 1
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    main = f"daemon off; master_process off; pid {folder}/pid; events {{}} http {{ access_log off; {folders}\n{block}}}"
    (folder / "nginx.conf").write_text(main)
    command = [str(PROGRAM), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")]
    process = subprocess.Popen(command)

    def listens() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens)
        yield Client(port)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_no_replica_is_left_out_for_having_refused(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "nginx")]
    for folder in folders:
        folder.mkdir()
    first, second = (
        served(fake_session(folder, FakeDecoder(CONTRACT), None), ServerSettings(replica=folder.name))
        for folder in folders[:2]
    )
    with first as one, second as other, nginx(folders[2], one, other) as router:

        def ask() -> tuple[int, str | None, str | None]:
            """(status, the error's code, who answered)"""
            fields = {"prompt": [1], "max_tokens": 2}
            status, headers, body = router.ask("POST", "/v1/completions", fields, {"x-session-id": "mine"})
            whose = headers.get("x-specexport-replica")
            return status, json.loads(body).get("error", {}).get("code") if whose else None, whose

        home = str(ask()[2])
        own, threads = "ab".index(home), [each.app.state.service.sessions.thread for each in (one, other)]
        threads[own].draining = True
        assert [ask() for _ in range(3)] == 3 * [(200, None, "ba"[own])]
        threads[1 - own].draining = True
        assert [ask()[:2] for _ in range(3)] == 3 * [(503, "shutting_down")]
        threads[own].draining = False
        assert ask() == (200, None, home)
