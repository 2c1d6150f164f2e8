"""The settings of a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from ..errors import ParameterError
from ..runtime.sampling.options import Flag, Text
from . import checks

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
KEY_VARIABLE = "SPECEXPORT_API_KEY"
PER_KEY = 4
QUEUE_TIMEOUT = 600.0  # as long as openai's clients wait for an answer
FLAG = Flag().check


def setting(default: Any, check: Callable[[str, Any], Any], help: str, flag: str | None = None) -> Any:
    """A field of `ServerSettings`; one whose default is None may be None.

    flag: its option of `specexport serve`, by default called as the field; "" for none.
    """
    return field(default=default, metadata={"check": check, "help": help, "flag": flag})


def flag_of(one: Field[Any]) -> str:
    flag: str | None = one.metadata["flag"]
    return f"--{one.name.replace('_', '-')}" if flag is None else flag


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The options of `specexport serve` as keywords, and some without an option; docs/http.md lists all.

    Times are in seconds, sizes in bytes. allowed_hosts: without ports; by default only the loopback names without keys,
    and any host with keys. cors_origins: exact origins. max_queue, max_queue_per_key, queue_timeout, grammar_timeout:
    of the `AsyncSession` that `create_app` makes from a `Session`. Raises `ParameterError` for invalid values,
    including a single text where several are expected.
    """

    model: str | tuple[str, ...] | None = setting(
        None,
        checks.models,
        "Model name for clients; repeatable, answers have the first. [default: the bundle's]",
        "--served-model-name",
    )
    any_model_name: bool = setting(False, FLAG, "Accept requests for a model of any name.")
    replica: str | None = setting(
        None, checks.name, "Name of this replica, sent in x-specexport-replica.", "--replica-name"
    )
    api_keys: tuple[str, ...] = setting((), checks.keys, "Keys; a request must bring one of them.", "")
    public_metrics: bool = setting(False, FLAG, "Serve /metrics without an API key.")
    allowed_hosts: tuple[str, ...] | None = setting(
        None,
        checks.hosts,
        "Host header to accept in addition to the loopback names; * for any; repeatable.",
        "--allowed-host",
    )
    cors_origins: tuple[str, ...] = setting(
        (), checks.origins, "Origin whose pages may call the API; repeatable.", "--cors-origin"
    )
    default_temperature: float = setting(1.0, checks.temperature, "Temperature of requests that do not set one.")
    drafter: str | None = setting(
        None,
        Text(expected="the name of a drafter").check,
        "Drafter of requests that name none. [default: as for generate]",
    )
    max_tokens: int | None = setting(None, checks.count, "Maximum new tokens per request. [default: the capacity]")
    max_body: int = setting(1 << 20, checks.count, "Maximum bytes per request.")
    body_timeout: float = setting(30.0, checks.some_seconds, "Seconds until a whole body has arrived.", "")
    max_requests: int = setting(256, checks.count, "Maximum open requests, waiting ones included.", "")
    max_queue: int = setting(16, checks.count, "Maximum waiting requests.")
    max_queue_per_key: int | None = setting(
        None,
        checks.count,
        "Maximum waiting requests per API key (without keys: per address). [default: 4 with several keys, else all]",
    )
    queue_timeout: float = setting(QUEUE_TIMEOUT, checks.seconds, "Longest wait in the queue, in seconds.")
    grammar_timeout: float = setting(10.0, checks.seconds, "Total seconds that a request's grammar may take.")
    stall_timeout: float = setting(
        60.0, checks.seconds, "Seconds after which a pass, or compiling a grammar, makes /health return 503."
    )
    send_timeout: float = setting(
        60.0, checks.some_seconds, "Seconds after which a client that reads nothing is dropped.", ""
    )
    ping_interval: float = setting(10.0, checks.some_seconds, "Seconds between comments in a silent stream.", "")
    header_timeout: float = setting(
        20.0, checks.seconds, "Seconds after which a stream's status is sent although its turn has not come.", ""
    )
    allow_grammars: bool = setting(False, FLAG, "Accept context-free grammars (Lark) in requests.")
    strict_fields: bool = setting(False, FLAG, "Refuse unknown fields of requests instead of ignoring them.")
    metrics_prefix: str = setting("specexport", checks.prefix, "Prefix of metric names.")
    access_log: bool = setting(True, FLAG, "Do not log requests.", "--no-access-log")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, value))

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

    def refuse_of_queue(self) -> None:
        """Raises `ParameterError` for a setting of the queue, where there is a queue with its own."""
        for name in ("max_queue", "max_queue_per_key", "queue_timeout", "grammar_timeout"):
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise ParameterError(f"{name}={value} has no effect on an AsyncSession; give it to AsyncSession", name)

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
    unfit, keys = "an API key has spaces or characters beyond ASCII", []
    for number, line in enumerate(text.splitlines(), start=1):
        if key := line.strip():
            if not checks.is_key(key):
                raise ParameterError(
                    f"{file}, line {number}: {unfit}; write one key per line and nothing else", "api_keys"
                )
            keys.append(key)
    if key := os.environ.get(KEY_VARIABLE, "").strip():
        if not checks.is_key(key):
            raise ParameterError(f"{KEY_VARIABLE}: {unfit}; set it to a single key", "api_keys")
        keys.append(key)
    if file is not None and not keys:
        raise ParameterError(f"{file} holds no API key; write one key per line", "api_keys")
    return tuple(keys)
