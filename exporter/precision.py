"""What `--precision` and `--draft-precision` mean on the engines of a build, and which dialects and plans they need."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import product
from typing import cast, get_args

from ..bundle import FORMATS, PRECISIONS, Family, Format, Precision, Role
from ..engines.catalogue import ENGINES, LIBRARIES, Capability, capability_of, dotted, formats_of, info_of, too_old
from ..engines.onnxruntime import kernels
from ..engines.onnxruntime.cpu import availability as proving
from ..engines.tensorrt.api import dialect_for
from ..engines.tensorrt.compile import CompileOptions, check_options, compiler
from ..errors import EngineError, ParameterError
from .dialects import Dialect

# What quantized models compute in between their layers, and keep in their caches.
ELEMENT: dict[Family, Precision] = {"onnxruntime": "fp32", "onnxruntime-cuda": "fp16", "tensorrt": "fp16"}
GPU_DRAFT = "int4"
OPTIONS: dict[Role, str] = {"target": "--precision", "draft": "--draft-precision"}
FIELDS: dict[Role, str] = {"target": "precision", "draft": "draft_precision"}
NAMES: tuple[str, ...] = (*PRECISIONS, *(name for name in FORMATS if name != "float"))


@dataclass(frozen=True)
class PrecisionPlan:
    """precision: of everything but quantized weights. formats: of each model's weights.

    family: whose graphs quantized ones are.
    """

    precision: Precision
    formats: dict[Role, Format]
    family: Family

    def name(self, role: Role) -> str:
        """What the role's weights are called on the command line."""
        form = self.formats[role]
        return self.precision if form == "float" else form

    @property
    def quantized(self) -> bool:
        return any(form != "float" for form in self.formats.values())


def choose_precision_plan(engines: tuple[str, ...], precision: str, draft_precision: str | None) -> PrecisionPlan:
    """Raises `ParameterError` for unknown names, and for two that do not go together, `EngineError` for no engine's."""
    named: dict[Role, str] = {"target": precision, "draft": draft_precision or precision}
    for role, name in named.items():
        if name not in NAMES:
            raise _wrong(role, f"{name}; it must be one of {', '.join(NAMES)}")
    families = {engine: info_of(engine).family for engine in engines}
    first = next((engine for engine in engines if engine in LIBRARIES), engines[0])
    family = families[first]
    formats: dict[Role, Format] = {role: name if name in FORMATS else "float" for role, name in named.items()}
    numbers = PrecisionPlan(ELEMENT[family], formats, family)
    if not numbers.quantized:
        if named["draft"] != precision:
            pair = f"{named['draft']}, --precision {precision}"
            raise _wrong("draft", f"{pair}; they must be equal unless one is quantized")
        return PrecisionPlan(cast(Precision, precision), formats, family)
    for role, name in named.items():
        if name in PRECISIONS and name != numbers.precision:
            raise ParameterError(
                f"the {role}'s precision is {name}; next to a quantized model on {', '.join(engines)} "
                f"it must be {numbers.precision}, or quantized too",
                FIELDS[role],
            )
    if other := next((engine for engine, its in families.items() if its != family), ""):
        role = "draft" if formats["target"] == "float" else "target"
        both = f"{first} and {other} round differently and would give different text"
        raise _wrong(role, f"{named[role]}: {both}; build one bundle for each")
    return numbers


def _wrong(role: Role, text: str) -> ParameterError:
    """Of the option that says how the role's weights are stored."""
    return ParameterError(f"{OPTIONS[role]} is {text}", FIELDS[role])


def default_draft_precision(
    engines: tuple[str, ...], precision: str, options: CompileOptions, tensorrt_version: tuple[int, ...] | None
) -> str | None:
    """What the draft of a target in fp16 is stored in for engines on GPUs: int4 where all of them read it.

    A draft cannot change the text, and in fp16 takes two fifths of a round. None: as the target.
    """
    infos = [info_of(engine) for engine in engines]
    if precision != "fp16" or len({info.family for info in infos}) > 1 or not all(info.on_gpu for info in infos):
        return None
    capabilities = (None, *map(capability_of, options.compute_capabilities))
    if any(refusal(engine, GPU_DRAFT, each) for engine in engines for each in capabilities):
        return None
    if "tensorrt" in engines:
        version = tensorrt_version or _installed() or NEWEST
        if dialect_for("tensorrt", version) == "rows":
            return None
    return GPU_DRAFT


def _installed() -> tuple[int, ...] | None:
    """TensorRT's version on this host."""
    try:
        return compiler("tensorrt", CompileOptions()).version
    except EngineError:
        return None


def refusal(engine: str, precision: str, capability: Capability | None = None, option: str = "--precision") -> str:
    """Why `engine` cannot run it, in one line that says what can; empty when it can."""
    if precision in formats_of(engine, capability):
        return ""
    info = ENGINES[engine]
    known = ", ".join(formats_of(engine, capability))
    if capability is not None and precision in info.formats:
        where = too_old(engine, precision, capability)
    else:
        others = [name for name, other in ENGINES.items() if precision in other.formats]
        where = f"; {precision} runs on {', '.join(others)}" if others else ""
        return f"{option} is {precision}, which engine {engine} cannot run; it runs {known}{where}"
    return f"{option} is {precision}, which engine {engine} cannot run {where}; it runs {known}"


# What a device has if nobody says: the graphs are for TensorRT from 10.15 on.
NEWEST = (10, 15)


@dataclass(frozen=True)
class BuildTargets:
    """dialects: of the model graphs to make. compiled: engines whose plans are made at once.

    notes: what is left to do elsewhere.
    """

    dialects: tuple[Dialect, ...]
    compiled: tuple[str, ...]
    notes: tuple[str, ...]


def choose_build_targets(
    engines: tuple[str, ...],
    numbers: PrecisionPlan,
    options: CompileOptions,
    tensorrt_version: tuple[int, ...] | None,
    output: str,
    portable: bool = False,
) -> BuildTargets:
    """Raises `EngineError` and `ParameterError` for what this host, or an engine, cannot do.

    tensorrt_version: the one on the device, by default that of this host. A plan is made here only if it can be run
    there. portable: whether hosts without specexport-kernels are to run the bundle too.
    """
    for engine, role in product(engines, OPTIONS):
        capabilities = options.compute_capabilities if engine in LIBRARIES else ()
        for capability in (None, *map(capability_of, capabilities)):
            if problem := refusal(engine, numbers.name(role), capability, OPTIONS[role]):
                raise ParameterError(problem, FIELDS[role])
    usable = proving()
    if not usable.usable:
        raise EngineError(f"the graphs cannot be proved on this host: {usable.detail}; {usable.remedy}")
    wanted: set[Dialect] = set()
    compiled, notes = [], []
    if any(ENGINES[engine].kernels for engine in engines) and numbers.precision == "fp32":
        found = kernels.availability()
        if found.usable:
            wanted.add("kernels")
        else:
            notes.append(f"{found.detail}, so passes run on ONNX Runtime's own operators; {found.remedy}, build again")
    kernels_do = "kernels" in wanted and not portable
    if any(engine not in LIBRARIES and not (kernels_do and ENGINES[engine].kernels) for engine in engines):
        wanted.add("ort")
    if "tensorrt-rtx" in engines:
        library = compiler("tensorrt-rtx", options)  # compiles anywhere, so what it lacks is worth an error at once
        wanted.add(dialect_for(library.name, library.version))
        compiled.append("tensorrt-rtx")
    if "tensorrt" in engines:
        version = tensorrt_version
        check_options("tensorrt", options)
        try:
            lib = compiler("tensorrt", options)
            problem = ""
            if tensorrt_version is not None and lib.version[: len(tensorrt_version)] != tensorrt_version:
                problem = f"this host has TensorRT {dotted(lib.version)}, not {dotted(tensorrt_version)}"
        except EngineError as error:
            problem = str(error).partition(";")[0]
        else:
            if not problem:
                version = lib.version
                compiled.append("tensorrt")
        wanted.add(dialect_for("tensorrt", version or NEWEST))
        if problem:
            arguments = [part for argument in options.arguments for part in argument]
            command = shlex.join(["specexport", "compile", output, "--engine", "tensorrt", *arguments])
            older = (
                "" if tensorrt_version else " (TensorRT older than 10.15 needs a bundle built with --tensorrt-version)"
            )
            notes.append(f"tensorrt: no plans are made here: {problem}; on the device, run: {command}{older}")
    if "rows" in wanted and "int4" in numbers.formats.values():
        asked: Role = "target" if numbers.formats["target"] == "int4" else "draft"
        raise _wrong(asked, "int4, which TensorRT before 10.15 is not known to read; use int8, or a newer TensorRT")
    dialects = tuple(dialect for dialect in get_args(Dialect) if dialect in wanted)
    return BuildTargets(dialects, tuple(engine for engine in engines if engine in compiled), tuple(notes))


def parse_version(text: str) -> tuple[int, ...]:
    """`10.3` or longer. Raises `ParameterError`."""
    if not re.fullmatch(r"\d+(\.\d+){1,3}", text):
        raise ParameterError(f"--tensorrt-version is {text}; it must look like 10.3", "tensorrt_version")
    return tuple(int(part) for part in text.split("."))
