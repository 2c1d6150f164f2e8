"""`specexport serve` in processes of their own, for as long as one client needs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NAMES = ("another-name", "chat")  # the scripts use the last; `names` asks for the first


@contextmanager
def serving(bundle: Path, log: Path, options: tuple[str, ...]) -> Iterator[str]:
    """The address of a server, which is ended afterwards. Its stderr is appended to `log`."""
    named = [part for name in NAMES for part in ("--served-model-name", name)]
    command = [sys.executable, "-m", "specexport", "serve", str(bundle), "--port", "0", *named, *options]
    with log.open("ab") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise RuntimeError(f"specexport serve did not start: {said[-1] if said else 'it said nothing'}")
            yield f"http://127.0.0.1:{json.loads(line)['port']}"
        finally:
            process.terminate()


@contextmanager
def environment(bundle: Path, log: Path, servers: dict[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """The variables of a client's script, with all its servers running."""
    # Nothing of the caller's own accounts, and nothing that is looked up elsewhere.
    own = ("OPENAI_", "PYTHON", "LANGSMITH_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    offline = dict(
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        NO_PROXY="127.0.0.1",
        PYTHONUTF8="1",
        MODEL=NAMES[-1],
        ANOTHER_NAME=NAMES[0],
        TOKENIZER=str(bundle.resolve() / "tokenizer"),
    )
    with ExitStack() as stack:
        urls = {name: stack.enter_context(serving(bundle, log, options)) for name, options in servers.items()}
        yield kept | offline | urls
