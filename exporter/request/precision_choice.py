"""What `--precision` and `--draft-precision` mean on the engines that a bundle is built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ...bundle import FORMATS, PRECISIONS, Family, Format, Precision, Role
from ...engines.catalogue import ENGINES, LIBRARIES
from ...errors import ParameterError

# What quantized models compute in between their layers, and keep in their caches.
ELEMENT: dict[Family, Precision] = {"onnxruntime": "fp32", "tensorrt": "fp16"}
NAMES: tuple[str, ...] = (*PRECISIONS, *(name for name in FORMATS if name != "float"))
AUTO = "auto"


@dataclass(frozen=True)
class Numbers:
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


def choose_numbers(engines: tuple[str, ...], precision: str, draft_precision: str | None) -> Numbers:
    """Raises `ParameterError` for names that there are not, and for two that do not go together.

    Of `auto`, what it starts from: what it chooses in the end is measured.
    """
    if precision == AUTO:
        if others := [engine for engine in engines if engine != "onnxruntime"]:
            raise ParameterError(
                f"--precision auto measures on this CPU, for --engine onnxruntime; name a precision for {others[0]}",
                "precision",
            )
        if draft_precision is not None:
            raise ParameterError(
                f"--precision auto chooses the draft's precision too; leave out --draft-precision {draft_precision}",
                "draft_precision",
            )
        precision = ELEMENT["onnxruntime"]
    named: dict[Role, str] = {"target": precision, "draft": draft_precision or precision}
    for option, name in (("--precision", named["target"]), ("--draft-precision", named["draft"])):
        if name not in NAMES:
            raise ParameterError(
                f"{option} is {name}; it must be one of {', '.join(NAMES)}{', auto' * (option == '--precision')}",
                option.removeprefix("--").replace("-", "_"),
            )
    compiled = [engine for engine in engines if engine in LIBRARIES]
    family = ENGINES[compiled[0]].family if compiled else "onnxruntime"
    formats: dict[Role, Format] = {role: name if name in FORMATS else "float" for role, name in named.items()}
    numbers = Numbers(ELEMENT[family], formats, family)
    if not numbers.quantized:
        if named["draft"] != precision:
            raise ParameterError(
                f"--draft-precision is {named['draft']}, --precision {precision}; "
                "they must be equal unless one is quantized",
                "draft_precision",
            )
        return Numbers(cast(Precision, precision), formats, family)
    for role, name in named.items():
        if name in PRECISIONS and name != numbers.precision:
            raise ParameterError(
                f"the {role}'s precision is {name}; next to a quantized model on {', '.join(engines)} "
                f"it must be {numbers.precision}, or quantized too",
                "precision" if role == "target" else "draft_precision",
            )
    if compiled and len(compiled) < len(engines):
        other = next(engine for engine in engines if engine not in compiled)
        raise ParameterError(
            f"--precision is {precision}: {other} and {compiled[0]} round differently "
            "and would give different text; "
            "build one bundle for each",
            "precision",
        )
    return numbers
