"""The settings of a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from ..errors import ParameterError
from ..runtime.sampling.options import Flag, Name
from . import checks

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
KEY_VARIABLE = "SPECEXPORT_API_KEY"
PER_KEY = 4
QUEUE_TIMEOUT = 600.0  # as long as openai's clients wait for an answer
CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "model": checks.models,
    "api_keys": checks.keys,
    "allowed_hosts": checks.hosts,
    "cors_origins": checks.origins,
    "default_temperature": checks.temperature,
    "drafter": Name().check,
    "metrics_prefix": checks.prefix,
    "replica": checks.name,
    **dict.fromkeys(("max_tokens", "max_body", "max_requests", "max_queue", "max_queue_per_key"), checks.count),
    **dict.fromkeys(("queue_timeout", "grammar_timeout", "stall_timeout", "header_timeout"), checks.seconds),
    **dict.fromkeys(("body_timeout", "send_timeout", "ping_interval"), checks.some_seconds),
    **dict.fromkeys(
        ("any_model_name", "public_metrics", "allow_grammars", "strict_fields", "access_log"), Flag().check
    ),
}
OPTIONAL = ("model", "allowed_hosts", "max_tokens", "max_queue_per_key", "replica", "drafter")  # which may be None


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Times in seconds, sizes in bytes. Raises `ParameterError` for invalid values, including a single text where
    several are expected.

    model: the name that clients use, by default the bundle's; of several names, answers have the first.
    any_model_name: requests may name any model, and get this one. api_keys: empty for no authentication.
    public_metrics: `/metrics` without a key. allowed_hosts: values of the Host header without their port, in addition
    to loopback's names; "*" for any, if something in front of the server checks it. By default none without keys, and
    any with keys. cors_origins: exact origins whose pages may send requests from a browser.

    default_temperature: of requests that set none. drafter: of requests that name none, instead of the policy's.
    max_tokens: upper limit of a request's own, None for the capacity. max_body: of a request. body_timeout: for
    receiving all of it. max_requests: open at once, waiting ones included. max_queue, queue_timeout, grammar_timeout:
    see `AsyncSession`. max_queue_per_key: of one key, or without keys of one address; None for 4 with several keys, and
    for `max_queue` otherwise. stall_timeout: time without a prompt chunk or a round after which `/health` returns 503.
    send_timeout: a stream whose reader takes nothing for so long is ended. ping_interval: between comments in a silent
    stream. header_timeout: how long a stream's status waits for the engine; a stream that has it is not refused any
    more.

    allow_grammars: requests may contain context-free grammars (Lark), not only schemas, regexes and choices.
    strict_fields: unknown fields are refused instead of ignored. metrics_prefix: of the names at `/metrics`.
    access_log: one JSON line per request on the logger `specexport.access`, without any text of prompts or answers.
    replica: which of several servers this is; every answer has it in the header `x-specexport-replica`.
    """

    model: str | tuple[str, ...] | None = None
    any_model_name: bool = False
    api_keys: tuple[str, ...] = ()
    public_metrics: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    cors_origins: tuple[str, ...] = ()
    default_temperature: float = 1.0
    drafter: str | None = None
    max_tokens: int | None = None
    max_body: int = 1 << 20
    body_timeout: float = 30.0
    max_requests: int = 256
    max_queue: int = 16
    max_queue_per_key: int | None = None
    queue_timeout: float = QUEUE_TIMEOUT
    grammar_timeout: float = 10.0
    stall_timeout: float = 60.0
    send_timeout: float = 60.0
    ping_interval: float = 10.0
    header_timeout: float = 20.0
    allow_grammars: bool = False
    strict_fields: bool = False
    metrics_prefix: str = "specexport"
    access_log: bool = True
    replica: str | None = None

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            value = getattr(self, name)
            if value is not None or name not in OPTIONAL:
                object.__setattr__(self, name, check(name, value))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model, empty for the bundle's."""
        return (self.model,) if isinstance(self.model, str) else self.model or ()

    @property
    def waiting_per_key(self) -> int:
        """How many requests of one key, or address, may wait: a single user's are limited by the queue alone."""
        if self.max_queue_per_key is not None:
            return self.max_queue_per_key
        return PER_KEY if len(self.api_keys) > 1 else self.max_queue

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Allowed values of the Host header, None for any."""
        named = self.allowed_hosts
        if ANY_HOST in (named or ()) or (named is None and self.api_keys):
            return None
        return (*LOOPBACK, *(host.lower() for host in named or ()))


def check_listening(host: str, settings: ServerSettings, without_keys: bool = False) -> None:
    """Raises `ParameterError` for a host that others can reach, if no key is required."""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not (loopback or settings.api_keys or without_keys):
        raise ParameterError(
            f"host {host} can be reached from other machines and there is no API key; "
            f"give --api-key-file or set {KEY_VARIABLE}; or, if something in front of this server checks keys, give "
            "--no-auth, and --allowed-host for each name or address that clients use",
            "host",
        )


def keys_of_host(text: str = "", file: str | None = None) -> tuple[str, ...]:
    """The keys in the text of `file`, one per line, and the one in the environment.

    Raises `ParameterError` for a key that no client can send, and for a file without any if the environment has none.
    The message names the place and never the key.
    """
    unfit, found = "an API key has spaces or characters beyond ASCII", []
    for number, line in enumerate(text.splitlines(), start=1):
        if key := line.strip():
            if not checks.is_key(key):
                raise ParameterError(
                    f"{file}, line {number}: {unfit}; write one key per line and nothing else", "api_keys"
                )
            found.append(key)
    if key := os.environ.get(KEY_VARIABLE, "").strip():
        if not checks.is_key(key):
            raise ParameterError(f"{KEY_VARIABLE}: {unfit}; set it to a single key", "api_keys")
        found.append(key)
    if file is not None and not found:
        raise ParameterError(f"{file} holds no API key; write one key per line", "api_keys")
    return tuple(found)
