"""Writes a Triton model repository with a bundle: `specexport triton-repository`.

Texts are inserted into `config.pbtxt` without escaping: names are checked, the rest are numbers.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...bundle import Bundle
from ...bundle.files import clone_or_copy
from ...bundle.output import check_free, new_folder
from ...engines.catalogue import ENGINES
from ...errors import OutputError, ParameterError
from ...serve.checks import LONGEST_TIME
from ...serve.settings import QUEUE_TIMEOUT
from .tensors import BUNDLE, CONFIG, ENTRY, INPUTS, OF, OUTPUTS, PATHS

WHOLE = "_whole"  # suffix of the name of the model for whole answers
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
MAX_WAITING = 2**32 - 1  # which Triton's configuration can say
MODEL = """\
# Written by `specexport triton-repository`.
name: "{name}"
backend: "python"
max_batch_size: 0  # one request at a time: more instances, never batches
model_transaction_policy {{ decoupled: {decoupled} }}
{tensors}
instance_group [
  {{ count: {count} kind: {kind}{gpus} }}
]
# What waits, for all instances together; queue_full is 503, queue_timeout 400.
dynamic_batching {{
  default_queue_policy {{
    max_queue_size: {queue}
    timeout_action: REJECT
    default_timeout_microseconds: {timeout}
    allow_timeout_override: true
  }}
}}
{parameters}"""


def write_repository(bundle: Path, output: Path, options: RepositoryOptions) -> tuple[str, str]:
    """Make the folder `output`, whole or not at all; returns the names of its models, the one that streams first.

    Raises `BundleError`, `ParameterError`, and `OutputError` if `output` exists or cannot be written.
    """
    check_free(output, None)
    opened = Bundle.open(bundle)
    options.check(opened)
    name = options.model_name(opened)
    whole = name + WHOLE
    with new_folder(output, None) as folder:
        _write_model(folder / name, streaming_config(name, options), options)
        _write_model(folder / whole, whole_config(whole, name, options), options)
        for source in sorted(path for path in bundle.rglob("*") if path.is_file()):
            _place(source, folder / name / BUNDLE / source.relative_to(bundle), options.hard_links)
    return name, whole


def _write_model(folder: Path, config: str, options: RepositoryOptions) -> None:
    entry = folder / ENTRY
    entry.parent.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("entry.py"), entry)
    (folder / CONFIG).write_text(config, encoding="utf-8")
    if options.python_path:
        lines = [f"{one.resolve()}\n" for one in options.python_path]
        (folder / PATHS).write_text("".join(lines), encoding="utf-8")


def _place(source: Path, destination: Path, hard_links: bool) -> None:
    if not hard_links:
        clone_or_copy(source, destination)
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise OutputError(f"{source} is on another file system than the output; leave out --hard-links") from None


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
    queue_timeout: float = QUEUE_TIMEOUT
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
        if not 1 <= self.queue <= MAX_WAITING:
            raise ParameterError(f"--queue is {self.queue}; it must be from 1 to {MAX_WAITING}", "queue")
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


def streaming_config(name: str, options: RepositoryOptions) -> str:
    """The `config.pbtxt` of the model that streams."""
    kept = {"engine": options.engine, "threads": options.threads or None, "prompt_cache_mib": options.prompt_cache_mib}
    parameters = {key: str(value) for key, value in kept.items() if value is not None}
    gpus = f" gpus: [ {', '.join(map(str, options.gpus))} ]" if options.gpus else ""
    count, kind = (1, "KIND_GPU") if options.gpus else (options.instances, "KIND_CPU")
    return _config(name, options, parameters, decoupled="true", count=count, kind=kind, gpus=gpus)


def whole_config(name: str, of: str, options: RepositoryOptions) -> str:
    """The `config.pbtxt` of the model that returns whole answers of the model `of`.

    It has as many instances as the latter, since each waits for one answer; they need neither GPUs nor weights.
    """
    count = len(options.gpus) or options.instances
    return _config(name, options, {OF: of}, decoupled="false", count=count, kind="KIND_CPU", gpus="")


def _config(name: str, options: RepositoryOptions, parameters: Mapping[str, str], **filled: object) -> str:
    inputs = [f'input {{ name: "{one}" data_type: TYPE_STRING dims: [ 1 ] optional: true }}' for one in INPUTS]
    outputs = [f'output {{ name: "{one}" data_type: TYPE_STRING dims: [ 1 ] }}' for one in OUTPUTS]
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{one}" }} }}\n' for key, one in parameters.items()]
    return MODEL.format(
        name=name,
        tensors="\n".join([*inputs, *outputs]),
        queue=options.queue,
        timeout=round(options.queue_timeout * 1e6),
        parameters="".join(lines),
        **filled,
    )
