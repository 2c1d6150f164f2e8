"""The options of the Ray Serve application: the `args` of its config file."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from ...errors import ParameterError
from ...serve.settings import ServerSettings, keys_of_host
from ...serve.wire.invalid_structs import of_validation

T = TypeVar("T")
NOT_IN_A_FILE = ("api_keys", "model", "replica")  # secret; set in `Config`; different for each replica

# `ServerSettings` as a struct that refuses other keys and types.
_Server = msgspec.defstruct(
    "_Server",
    [
        (field.name, get_type_hints(ServerSettings)[field.name], field.default)
        for field in fields(ServerSettings)
        if field.name not in NOT_IN_A_FILE and field.default is not MISSING
    ],
    forbid_unknown_fields=True,
    kw_only=True,
)


class Autoscaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ray's own autoscaling options, by Ray's names; times in seconds."""

    min_replicas: int = 1
    max_replicas: int
    target_ongoing_requests: float = 1.0
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 600.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The application's options. Times in seconds.

    bundles: a path, or several bundles of one pair, served under one name; replica n loads bundle n modulo their
    number. model: the name that clients use, by default the first bundle's. replicas: how many, unless `autoscaling`
    is given. engine: by default the first usable one of each bundle. threads: of the engine; also how many cores Ray
    reserves for a replica. gpus: how many GPUs Ray reserves for a replica; it sees no others. prompt_cache_mib,
    chat_template: as in `specexport serve`.

    max_ongoing_requests: how many requests a replica has at once; one runs while the next is checked and tokenized.
    max_queued_requests: how many wait in each proxy, which refuses more with 503; -1 for any number. sticky: whether
    requests of one session (`x-session-id`) go to the same replica. fallbacks: how many other replicas are tried while
    that one is full. health_period: between health checks; three failures in a row end a replica. drain_timeout: how
    long running requests may take when a replica shuts down. api_key_file: a file of API keys, one per line, on every
    host; a key in the environment variable SPECEXPORT_API_KEY is valid too. server: fields of `ServerSettings`.
    """

    bundles: str | tuple[str, ...]
    model: str | None = None
    replicas: int = 1
    autoscaling: Autoscaling | None = None
    engine: str | None = None
    threads: int = 1
    gpus: int = 0
    prompt_cache_mib: int | None = None
    chat_template: str | None = None
    max_ongoing_requests: int = 2
    max_queued_requests: int = 32
    sticky: bool = True
    fallbacks: int = 2
    health_period: float = 10.0
    drain_timeout: float = 120.0
    api_key_file: str | None = None
    server: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Raises `ParameterError`, a `ValueError`, so that msgspec adds the place."""
        if not self.paths or not all(self.paths):
            raise ParameterError("bundles has no path; give the path of a bundle, or a list of paths", "bundles")
        for name in ("replicas", "threads", "max_ongoing_requests"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; it must be 1 or more", name)
        for name in ("gpus", "fallbacks"):
            if getattr(self, name) < 0:
                raise ParameterError(f"{name} is {getattr(self, name)}; it must be 0 or more", name)
        if self.autoscaling is not None and self.replicas != 1:
            raise ParameterError(
                "replicas and autoscaling are both given; give only one, since autoscaling sets the number of replicas",
                "replicas",
            )

    @classmethod
    def of(cls, args: dict[str, Any]) -> Config:
        """The config with the fields `args`. Raises `ParameterError`."""
        config = _converted(cls, args, "args")
        config.settings("check")
        return config

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.bundles,) if isinstance(self.bundles, str) else self.bundles

    @property
    def name(self) -> str:
        return self.model or Path(self.paths[0]).name.removesuffix(".bundle")

    def bundle_of(self, rank: int) -> str:
        """The path of the bundle that replica number `rank` loads."""
        return self.paths[rank % len(self.paths)]

    def settings(self, replica: str, keys: tuple[str, ...] = ()) -> ServerSettings:
        """The server settings of one replica. Raises `ParameterError`."""
        server = msgspec.structs.asdict(_converted(_Server, self.server, "args.server"))
        return ServerSettings(model=self.name, replica=replica, api_keys=keys, **server)

    def keys(self) -> tuple[str, ...]:
        """The API keys of this host. Raises `ParameterError` for a file that cannot be read or has no key."""
        if self.api_key_file is None:
            return keys_of_host()
        try:
            text = Path(self.api_key_file).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            message = f"api_key_file {self.api_key_file} cannot be read: {error.strerror}; it must be on every host"
            raise ParameterError(message, "api_key_file") from None
        return keys_of_host(text, f"api_key_file {self.api_key_file}")


def _converted(kind: type[T], value: Any, where: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        wrong, cause = of_validation(error, kind, value), error.__cause__
        field = cause.field if isinstance(cause, ParameterError) else wrong.param
        place = ".".join(filter(None, (where, field)))
        raise ParameterError(f"{where}: {wrong}; see docs/scale-out.md", place) from None
