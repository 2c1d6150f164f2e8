"""`specexport serve`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..serve import checks
from ..serve.settings import ServerSettings, check_listening, flag_of, keys_of_host
from .options import BUNDLE, CHAT_TEMPLATE, FILE, negated, none_if_empty, running, text_of

if TYPE_CHECKING:
    from ..serve.listen import Listening
    from ..serve.log import UnblockedHandler


LAST_WRITES = 1.0  # seconds for what is left of the log at exit


SECONDS = click.FloatRange(min=0)  # `checks.seconds` refuses NaN, and what is too long


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each field of `ServerSettings` that has a flag."""
    for one in reversed(fields(ServerSettings)):
        if flag := flag_of(one):
            command = click.option(flag, one.name, help=one.metadata["help"], **_kind(one))(command)
    return command


def _kind(one: Field[Any]) -> dict[str, Any]:
    check, default = one.metadata["check"], one.default
    if isinstance(default, bool):  # named for what it changes
        return {"is_flag": True, "callback": negated if default else None}
    if check in (checks.models, checks.hosts, checks.origins):
        return {"multiple": True, "callback": none_if_empty if default is None else None}
    types = {checks.count: click.IntRange(1), checks.seconds: SECONDS, checks.temperature: click.FloatRange(0, 2)}
    shown = {"default": default, "show_default": True} if default is not None else {}
    return {"type": types.get(check), **shown}


@click.command()
@BUNDLE
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
@click.option("--uds", type=FILE, help="Unix socket to listen on, instead of an address.")
@CHAT_TEMPLATE
@click.option(
    "--api-key-file",
    type=click.File(encoding="utf-8", errors="surrogateescape"),
    help="File of API keys, one per line; $SPECEXPORT_API_KEY holds one more.",
)
@click.option("--no-auth", is_flag=True, help="Listen beyond this machine without an API key.")
@click.option(
    "--trust-forwarded", is_flag=True, help="Take client addresses from X-Forwarded-For, set by a proxy on this host."
)
@settings_options
@click.option(
    "--drain-delay",
    type=SECONDS,
    default=0.0,
    show_default=True,
    help="Seconds from SIGTERM until the socket closes; use 5 behind a load balancer.",
)
@click.option(
    "--drain-timeout",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="Seconds after --drain-delay that open requests may take to finish.",
)
@click.option(
    "--prompt-cache-mib",
    type=click.IntRange(0),
    help="Host memory for cache rows of earlier conversations, in MiB. [default: 512 on a CPU, else 0]",
)
@running
def serve(
    bundle: Path,
    where: dict[str, Any],
    api_key_file: Any,
    no_auth: bool,
    prompt_cache_mib: int | None,
    chat_template: Path | None,
    **options: Any,
) -> None:
    """Serve a bundle over the OpenAI API.

    One request runs at a time, others wait. Prints one line of JSON with the port when it is ready, and logs lines of
    JSON to stderr. After SIGTERM, open requests may finish; a second SIGTERM ends them.
    """
    from ..errors import GrammarError, MissingPackageError
    from ..serve import create_app  # noqa: F401 - names the package that is missing
    from ..serve.listen import Listening
    from .progress import load

    listening = Listening(**{one.name: options.pop(one.name) for one in fields(Listening)})
    if listening.uds is not None:
        _check_alone()
    keys = keys_of_host() if api_key_file is None else keys_of_host(text_of(api_key_file), api_key_file.name)
    settings = ServerSettings(api_keys=keys, **options)
    listening.check()
    if listening.uds is None:
        check_listening(listening.host, settings, no_auth)
    log = _log_to_stderr()
    budget = None if prompt_cache_mib is None else prompt_cache_mib << 20
    with load(bundle, prompt_cache_bytes=budget, chat_template=chat_template, **where) as session:
        with suppress(MissingPackageError, GrammarError):  # a request with a grammar will be told
            session.prepare_grammar()
        raise SystemExit(_run(session, settings, listening, log))


def _run(session: Any, settings: ServerSettings, listening: Listening, log: UnblockedHandler | None = None) -> int:
    import asyncio
    import os
    import signal
    from threading import Thread

    from ..serve import create_app
    from ..serve.listen import Listener

    app = create_app(session, settings)
    app.state.service.sessions.prepare()  # so that no request has to wait for it
    if log is not None:
        app.state.service.metrics.watch_log(lambda: log.dropped)
    socket_inode: list[int] = []  # the socket file's number

    def started(port: int) -> None:
        if listening.uds is not None:
            socket_inode.append(listening.uds.stat().st_ino)
        where = {"uds": str(listening.uds)} if listening.uds else {"host": listening.host, "port": port}
        line = json.dumps({"ready": True, **where, "model": app.state.service.name})
        if sys.__stdout__ is not None:  # by a thread, since nobody has to read it
            Thread(target=say, args=(f"{line}\n".encode(),), daemon=True).start()

    def say(line: bytes) -> None:
        with suppress(OSError):
            os.write(1, line)

    async def main() -> int:
        listener, loop, numbers = Listener(app, listening), asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:  # not the loop's handlers: the default comes back after them
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(listener.stop))
        await listener.run(started)
        if listener.hung:  # nothing ends the engine's thread, and all that is left would wait for it
            if log is not None:
                log.wait(LAST_WRITES)
            os._exit(1)
        for number in numbers:  # what is left takes no request along
            signal.signal(number, signal.SIG_IGN)
        return 0 if listener.clean else 1

    code = asyncio.run(main())
    with suppress(OSError):  # the system leaves the file; another server may have made its own there since
        if listening.uds is not None and listening.uds.stat().st_ino in socket_inode:
            listening.uds.unlink()
    return code


def _check_alone() -> None:
    """A socket file replaces an address. Raises `click.UsageError`."""
    source = click.get_current_context().get_parameter_source
    given = [f"--{name}" for name in ("host", "port") if source(name) is not ParameterSource.DEFAULT]
    if given:
        raise click.UsageError(f"--uds listens on a socket file instead of an address; leave out {' and '.join(given)}")


def _log_to_stderr() -> UnblockedHandler:
    """Formats records as lines of JSON. The access log's records already are."""
    import atexit
    import logging
    import os

    from ..serve.log import UnblockedHandler

    closed = sys.__stderr__ is None  # then its number is some other file's
    handler = UnblockedHandler(os.open(os.devnull, os.O_WRONLY) if closed else 2)
    atexit.register(handler.wait, LAST_WRITES)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return handler
