"""Options of a model repository."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...bundle import Bundle
from ...engines.catalogue import ENGINES
from ...errors import ParameterError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
LONGEST_TIME = 1e9  # seconds, as of a server
MOST_WAITING = 2**32 - 1  # which Triton's configuration can say


@dataclass(frozen=True, kw_only=True)
class RepositoryOptions:
    """name: the model's, by default the bundle's. gpus: one instance on each of them; without, `instances` on the CPU.

    engine, threads, prompt_cache_mib: of each instance, as in `specexport.load`; 0 threads leave the number to the
    engine, or are an equal share of the cores if there are several instances. queue: how many requests may wait.
    queue_timeout: for how many seconds. python_path: folders of packages for Triton's interpreter. hard_links: whether
    the bundle's files are hard-linked instead of copied.

    Raises `ParameterError`.
    """

    name: str | None = None
    instances: int = 1
    gpus: tuple[int, ...] = ()
    engine: str | None = None
    threads: int = 0
    prompt_cache_mib: int | None = None
    queue: int = 16
    queue_timeout: float = 30.0
    python_path: tuple[Path, ...] = ()
    hard_links: bool = False

    def __post_init__(self) -> None:
        if self.gpus and self.instances != 1:
            raise ParameterError(
                f"both --instances {self.instances} and GPUs are given; give only one of the two", "instances"
            )
        if len(set(self.gpus)) != len(self.gpus):
            raise ParameterError(f"a GPU appears twice in {', '.join(map(str, self.gpus))}; name each once", "gpus")
        if not 0.001 <= self.queue_timeout <= LONGEST_TIME:  # NaN fails as well
            raise ParameterError(
                f"--queue-timeout is {self.queue_timeout}; it must be from 0.001 to {LONGEST_TIME:.0f} seconds",
                "queue_timeout",
            )
        if not 1 <= self.queue <= MOST_WAITING:
            raise ParameterError(f"--queue is {self.queue}; it must be from 1 to {MOST_WAITING}", "queue")
        for folder in self.python_path:
            if not folder.is_dir() or not str(folder).isprintable():
                raise ParameterError(
                    f"{str(folder)!r} is not a folder; give one that packages are installed in", "python_path"
                )

    def model_name(self, bundle: Bundle) -> str:
        """The model's name. Raises `ParameterError` if it cannot be part of a URL."""
        name = self.name or bundle.root.resolve().name.removesuffix(".bundle")
        if not NAME.fullmatch(name):
            expected = "at most 128 letters, digits, dots, dashes and underscores, a letter or a digit first"
            raise ParameterError(f"{name!r} cannot be the model's name; give one with --name: {expected}", "name")
        return name

    def check(self, bundle: Bundle) -> None:
        """Raises `ParameterError` if the bundle cannot run with these options."""
        built = bundle.manifest.engines
        if self.engine is not None and self.engine not in built:
            raise ParameterError(
                f"the bundle was built for {', '.join(built)}, not for {self.engine!r}; name one of them", "engine"
            )
        candidates = [self.engine] if self.engine else built
        if self.gpus and not any(one in ENGINES and ENGINES[one].on_gpu for one in candidates):
            raise ParameterError(
                f"{' and '.join(candidates)} runs on the CPU only; leave the GPUs out, or build for another engine",
                "gpus",
            )
