"""`specexport serve`, and `triton-repository` for Triton's server."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .options import BUNDLE, CHAT_TEMPLATE, running, text_of

if TYPE_CHECKING:
    from ..serve.listen import Listener, Listening
    from ..serve.settings import ServerSettings


LONGEST_TIME = 1e9  # as of `ServerSettings`; 30 years
WHERE = ("host", "port", "uds", "drain_delay", "drain_timeout", "trust_forwarded")


class Seconds(click.FloatRange):
    """Rejects NaN, which passes every range check."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not found <= LONGEST_TIME:
            self.fail(f"{value} is not between 0 and {LONGEST_TIME:.0f} seconds.", param, ctx)
        return found


SECONDS = Seconds(min=0)


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
@click.option("--uds", type=click.Path(path_type=Path), help="Unix socket to listen on, instead of an address.")
@CHAT_TEMPLATE
@click.option(
    "--served-model-name",
    "model",
    multiple=True,
    help="Model name that clients use; repeatable, answers have the first. [default: the bundle's]",
)
@click.option("--any-model-name", is_flag=True, help="Accept requests for a model of any name.")
@click.option("--replica-name", "replica", help="Name of this replica, sent in x-specexport-replica.")
@click.option(
    "--api-key-file",
    type=click.File(encoding="utf-8", errors="surrogateescape"),
    help="File of API keys, one per line; $SPECEXPORT_API_KEY holds one more.",
)
@click.option("--no-auth", is_flag=True, help="Listen beyond this machine without an API key.")
@click.option("--public-metrics", is_flag=True, help="Serve /metrics without an API key.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="Accepted Host header, besides the loopback names; * for any; repeatable.",
)
@click.option(
    "--trust-forwarded", is_flag=True, help="Take the client's address from X-Forwarded-For of a proxy on this host."
)
@click.option("--cors-origin", "cors_origins", multiple=True, help="Origin whose pages may call the API; repeatable.")
@click.option(
    "--default-temperature",
    type=click.FloatRange(0, 2),
    default=1.0,
    show_default=True,
    help="Temperature of requests that do not set one.",
)
@click.option(
    "--drafter",
    help="Drafter of requests that name none, as for generate. [default: the policy's where calibrated, else model if "
    "the bundle has one, else ngram]",
)
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum new tokens per request. [default: the capacity]")
@click.option(
    "--max-body", type=click.IntRange(1), default=1 << 20, show_default=True, help="Maximum bytes per request."
)
@click.option("--max-queue", type=click.IntRange(1), default=16, show_default=True, help="Maximum waiting requests.")
@click.option(
    "--max-queue-per-key",
    type=click.IntRange(1),
    help="Maximum waiting requests per API key, or else per address. [default: 4 with several keys, else all]",
)
@click.option(
    "--queue-timeout", type=SECONDS, default=600.0, show_default=True, help="Longest wait in the queue, in seconds."
)
@click.option(
    "--grammar-timeout",
    type=SECONDS,
    default=10.0,
    show_default=True,
    help="Seconds that a request's grammar may take in total to compute which tokens may follow.",
)
@click.option(
    "--stall-timeout",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="/health returns 503 once a single pass has run for this many seconds.",
)
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
    help="Host memory for the cache rows of earlier conversations, in MiB. [default: 512 on a CPU, else 0]",
)
@click.option("--allow-grammars", is_flag=True, help="Accept context-free grammars (Lark) in requests.")
@click.option("--strict-fields", is_flag=True, help="Refuse unknown fields of requests instead of ignoring them.")
@click.option("--no-access-log", is_flag=True, help="Log no line per request.")
@click.option("--metrics-prefix", default="specexport", show_default=True, help="Prefix of the names at /metrics.")
@running
def serve(
    bundle: Path,
    where: dict[str, Any],
    api_key_file: Any,
    no_auth: bool,
    no_access_log: bool,
    prompt_cache_mib: int | None,
    chat_template: Path | None,
    **options: Any,
) -> None:
    """Serve a bundle over the OpenAI API.

    One request runs at a time, others wait. Prints one line of JSON with its port once it is ready; logs go to stderr,
    one line of JSON each. After SIGTERM, open requests may finish; a second SIGTERM ends them. Needs: pip install
    'specexport[serve]'
    """
    from ..errors import GrammarError, MissingPackageError
    from ..serve import ServerSettings
    from ..serve.listen import Listening
    from ..serve.settings import check_listening
    from .progress import load

    listening = Listening(**{name: options.pop(name) for name in WHERE})
    if listening.uds is not None:
        _check_alone()
    options |= {name: options[name] or None for name in ("allowed_hosts", "model")}
    settings = ServerSettings(api_keys=_keys(api_key_file), access_log=not no_access_log, **options)
    if listening.uds is None:
        check_listening(listening.host, settings, no_auth)
    _log_to_stderr()
    budget = None if prompt_cache_mib is None else prompt_cache_mib << 20
    with load(bundle, prompt_cache_bytes=budget, chat_template=chat_template, **where) as session:
        session.prepare()  # so that no request has to wait for it
        with suppress(MissingPackageError, GrammarError):  # a request with a grammar will be told
            session.prepare_grammar()
        raise SystemExit(_run(session, settings, listening))


def _run(session: Any, settings: ServerSettings, listening: Listening) -> int:
    import asyncio
    import os

    from ..serve import create_app
    from ..serve.http.accepting import affordable
    from ..serve.listen import Listener
    from ..serve.log import LAST_WRITES, Unblocked

    app = create_app(session, replace(settings, max_requests=affordable(settings.max_requests)))
    log = sys.stderr
    if isinstance(log, Unblocked):
        app.state.service.metrics.total("log_lines_dropped", "Lines of the log that nobody took.", lambda: log.dropped)
    own: list[int] = []  # the socket file's number

    def started(port: int) -> None:
        if listening.uds is not None:
            own.append(listening.uds.stat().st_ino)
        where = {"uds": str(listening.uds)} if listening.uds else {"host": listening.host, "port": port}
        click.echo(json.dumps({"ready": True, **where, "model": app.state.service.name}))

    async def main() -> int:
        listener = Listener(app, listening)
        _handle_signals(listener)
        await listener.run(started)
        if listener.hung:  # nothing ends the engine's thread, and all that is left would wait for it
            if isinstance(log, Unblocked):
                log.wait(LAST_WRITES)
            os._exit(1)
        return 0 if listener.clean else 1

    code = asyncio.run(main())
    with suppress(OSError):  # the system leaves the file; another server may have made its own there since
        if listening.uds is not None and listening.uds.stat().st_ino in own:
            listening.uds.unlink()
    return code


def _check_alone() -> None:
    """A socket file replaces an address. Raises `click.UsageError`."""
    context = click.get_current_context()
    given = [f"--{name}" for name in ("host", "port") if _given(context, name)]
    if given:
        raise click.UsageError(f"--uds listens on a socket file instead of an address; leave out {' and '.join(given)}")


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _handle_signals(listener: Listener) -> None:
    import asyncio
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, listener.stop)


def _keys(file: Any) -> tuple[str, ...]:
    from ..serve.settings import keys_of_host

    return keys_of_host() if file is None else keys_of_host(text_of(file), file.name)


def _log_to_stderr() -> None:
    """Formats records as lines of JSON. The access log's records already are."""
    import logging

    from ..serve.log import LogLines, dropped, unblock_standard_streams

    unblock_standard_streams(dropped)
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


@click.command("triton-repository")
@BUNDLE
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to create.")
@click.option("--name", help="Name of the model. [default: the bundle's]")
@click.option(
    "--instances",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of processes on the CPU.",
)
@click.option("--gpu", "gpus", type=click.IntRange(0), multiple=True, help="GPU to run an instance on; repeatable.")
@click.option("--engine", help="Engine to run on. [default: the first of the bundle that the server's host can run]")
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="CPU threads per instance. [default: the engine's choice; an equal share where several share the cores]",
)
@click.option(
    "--prompt-cache-mib",
    type=click.IntRange(0),
    help="Host memory per instance for the cache rows of earlier conversations, in MiB. [default: 512 on a CPU, "
    "else 0]",
)
@click.option("--queue", type=int, default=16, show_default=True, help="Maximum waiting requests.")
@click.option(
    "--queue-timeout", type=float, default=30.0, show_default=True, help="Longest wait in the queue, in seconds."
)
@click.option(
    "--python-path",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Folder of packages for Triton's interpreter, which ignores PYTHONPATH; repeatable.",
)
@click.option("--hard-links", is_flag=True, help="Link the bundle's files instead of copying them.")
def triton_repository(bundle: Path, output: Path, **options: Any) -> None:
    """Write a model repository for Triton.

    It has two models: NAME streams one response per round, and NAME_whole returns a single response. Run it with:
    tritonserver --model-repository DIR --disable-auto-complete-config
    """
    from ..integrations.triton.repository import RepositoryOptions, write_repository

    chosen = RepositoryOptions(**options)
    names = write_repository(bundle, output, chosen)
    click.echo(f"models {' and '.join(names)}", err=True)
    start = join(["tritonserver", "--model-repository", str(output), "--disable-auto-complete-config"])
    click.echo(f"next: {start}", err=True)
    click.echo(str(output))
