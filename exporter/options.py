"""What a build is asked for.

Imports nothing heavy, so that a wrong option is refused at once.

`--draft-vocabulary`, as it is given.

`--draft`, as it is given: a checkpoint, or `NAME=` and one. What exists is a path, whatever its characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..bundle import RESERVED, Contract, check_name
from ..editing.progress import Timed
from ..engines.catalogue import LIBRARIES
from ..engines.tensorrt.compile import CompileOptions
from ..errors import ParameterError
from .precision import BuildTargets, PrecisionPlan, choose_build_targets, choose_precision_plan, parse_version
from .weights.texts import read_texts

# Of `--draft-vocabulary`: measure how many tokens pay.
AUTO = "auto"


def parse_vocabulary(given: str) -> int | None:
    """The number of tokens, or None for `auto`. Raises `ParameterError`."""
    if given == AUTO:
        return None
    if not given.isascii() or not given.isdigit() or not int(given):
        raise ParameterError(
            f"--draft-vocabulary is {given}; it must be a number of tokens, at least 1, or {AUTO}", "draft_vocabulary"
        )
    return int(given)


# This value means that nothing is exported: drafts are looked up in the text with every bundle.
LOOKUP = "lookup"
LONGEST = 32


@dataclass(frozen=True)
class NamedDraft:
    """source: a folder or a hub id. Raises `ParameterError` for a name that no draft can have."""

    name: str
    source: str

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except ValueError as error:
            raise ParameterError(f"--draft: {error}", "draft") from None


UNNAMED = "draft"  # whose path gives no name


def parse_draft(given: str) -> NamedDraft:
    """Without a name, it is the last word of the path. Raises `ParameterError`."""
    before, equals, source = given.partition("=")
    if not equals or "/" in before or not before or _exists(given):
        return NamedDraft(_usual_name(given), given)
    if not source:
        raise ParameterError(f"--draft is {given}; expected NAME=PATH, or just a path", "draft")
    return NamedDraft(before, source)


def parse_drafts(given: Iterable[str]) -> tuple[NamedDraft, ...]:
    """Raises `ParameterError` for two of one name."""
    found: dict[str, NamedDraft] = {}
    for one in given:
        if one == LOOKUP:
            continue
        draft = parse_draft(one)
        if draft.name in found:
            raise ParameterError(
                f"two drafts are called {draft.name!r}, {found[draft.name].source} and {draft.source}; "
                "name one of them with --draft NAME=PATH",
                "draft",
            )
        found[draft.name] = draft
    return tuple(found.values())


def _exists(source: str) -> bool:
    return os.path.lexists(os.path.expanduser(source))  # noqa: PTH111 - of Path, it refuses an unknown user


def _usual_name(source: str) -> str:
    parts = r"[/\\]" if _exists(source) else r"[/:\\]"  # a colon comes after a hub id
    word = re.split(parts, source.rstrip("/\\"))[-1].removesuffix(".gguf")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", word).lstrip("._-")[:LONGEST]
    return name if name and name not in RESERVED else UNNAMED


# Wide products pay on a CPU, where a last chunk is as wide as what is left of the prompt (docs/benchmarks.md). On a GPU
# it is padded to a whole one.
CPU_CHUNK, CHUNK = 256, 64
# Beyond these values, costs rise and hardly anything is caught.
MAX_TREE_ROWS = 32


@dataclass(frozen=True)
class CalibrationTexts:
    """What a model reads while its layers are observed. own: the user's, not the shipped ones."""

    texts: tuple[str, ...] = ()
    own: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """max_seq_len None takes what the models' positions allow, up to 4096. prompt_chunk: tokens per prefill pass; None
    is 256 for the CPU alone and 64 for GPUs.

    precision: a name of `precision.NAMES`.
    tree_rows: most leaves of a round, in rows of a step in addition to its chain; 0 for chains alone.
    draft_precision: the target's. calibration_texts: JSONL of prompts, by default a shipped set.
    min_overlap: the part of the tokens in the calibration texts that a draft of another tokenizer must have.
    draft_vocabulary: how many tokens the draft's output layer keeps, or `auto`; None for all.
    compiling: for the engines that run plans. tensorrt_version: the one on the device, by default that of this host.
    """

    max_seq_len: int | None = None
    max_draft_tokens: int = 4
    tree_rows: int = 0
    prompt_chunk: int | None = None
    min_overlap: float = 0.5
    draft_vocabulary: str | None = None
    precision: str = "fp32"
    draft_precision: str | None = None
    calibration_texts: Path | None = None
    engines: tuple[str, ...] = ("onnxruntime",)
    compiling: CompileOptions = field(default_factory=CompileOptions)
    tensorrt_version: str | None = None
    force: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_tokens <= 32:
            raise ParameterError(
                f"--max-draft-tokens is {self.max_draft_tokens}; it must be from 1 to 32", "max_draft_tokens"
            )
        if self.tree_rows:
            self._check_trees()
        if self.prompt_chunk is not None and self.prompt_chunk < 1:
            raise ParameterError(f"--prompt-chunk is {self.prompt_chunk}; it must be at least 1", "prompt_chunk")
        if not 0 <= self.min_overlap <= 1:  # also: NaN
            raise ParameterError(
                f"--min-overlap is {self.min_overlap}; it must be from 0 to 1 (0.5: half of the texts' tokens)",
                "min_overlap",
            )
        if not self.engines:
            raise ParameterError("no --engine is given; name at least one", "engine")
        if self.draft_vocabulary is not None:
            parse_vocabulary(self.draft_vocabulary)
        if self.calibration_texts is not None and not self._reads_texts:
            raise ParameterError(
                "--calibration-prompts is for quantized weights and --draft-vocabulary; "
                f"--precision is {self.precision}",
                "calibration_prompts",
            )
        for option, *_ in self.compiling.arguments:
            if not set(LIBRARIES) & set(self.engines):
                raise ParameterError(
                    f"{option} is for engines that run plans; add --engine {' or --engine '.join(LIBRARIES)}",
                    option.removeprefix("--").replace("-", "_"),
                )
        if self.tensorrt_version is not None:
            parse_version(self.tensorrt_version)
            if "tensorrt" not in self.engines:
                raise ParameterError(
                    "--tensorrt-version is for --engine tensorrt; add it, or leave the version out", "tensorrt_version"
                )

    def _check_trees(self) -> None:
        if not 0 <= self.tree_rows <= MAX_TREE_ROWS:
            raise ParameterError(
                f"--tree-rows is {self.tree_rows}; it must be from 0 (off) to {MAX_TREE_ROWS}", "tree_rows"
            )
        if self.engines != ("onnxruntime",):
            raise ParameterError(
                f"--tree-rows is only for --engine onnxruntime; the engines are {', '.join(self.engines)}", "tree_rows"
            )
        if self.numbers.formats["target"] != "float":
            # a quantized row has the same bits in a pass of any width, which a row outside the chain would break
            raise ParameterError(
                f"--tree-rows is for fp32 and fp16; --precision is {self.precision}, whose rows must have the "
                "same bits in "
                "every pass",
                "tree_rows",
            )

    @property
    def numbers(self) -> PrecisionPlan:
        return choose_precision_plan(self.engines, self.precision, self.draft_precision)

    @property
    def chunk(self) -> int:
        """Tokens per prefill pass; fewer by default where experts are copied for each (`prompt_chunk`)."""
        if self.prompt_chunk is not None:
            return self.prompt_chunk
        return CPU_CHUNK if self.engines == ("onnxruntime",) else CHUNK

    @property
    def _reads_texts(self) -> bool:
        return self.numbers.quantized or self.draft_vocabulary is not None

    @cached_property
    def texts(self) -> CalibrationTexts:
        """Empty where nothing needs them. Read once, so that a pipe can be given. Raises `ParameterError`."""
        if not self._reads_texts:
            return CalibrationTexts()
        return CalibrationTexts(read_texts(self.calibration_texts), self.calibration_texts is not None)

    def check(self, drafts: Sequence[NamedDraft], output: str) -> BuildTargets:
        """What the engines ask for.

        Raises `ParameterError` and `EngineError` for what can be seen to fail before a model is read.
        """
        names = [draft.name for draft in drafts]
        if len(set(names)) < len(names):
            raise ParameterError(f"the drafts are called {', '.join(names)}; each needs a unique name", "draft")
        if not drafts and self.draft_precision is not None:
            raise ParameterError(
                f"--draft-precision is {self.draft_precision}, but there is no --draft; leave it out", "draft_precision"
            )
        if not drafts and self.draft_vocabulary is not None:
            raise ParameterError(
                f"--draft-vocabulary is {self.draft_vocabulary}, but there is no --draft; leave it out",
                "draft_vocabulary",
            )
        if not drafts and self.tree_rows:
            raise ParameterError(
                f"--tree-rows is {self.tree_rows}, but there is no --draft to give leaves for them; leave it out",
                "tree_rows",
            )
        if len(drafts) > 1 and "onnxruntime" not in self.engines:
            raise ParameterError(
                f"{len(drafts)} --draft options are given; additional drafts run only with --engine "
                "onnxruntime, "
                f"and this build is for {', '.join(self.engines)}; add that engine, or give one draft",
                "draft",
            )
        if len(drafts) > 1 and self.draft_vocabulary is not None:
            raise ParameterError(
                f"--draft-vocabulary is {self.draft_vocabulary}, which works with one draft; build with that one, "
                "and add the others with specexport add-draft",
                "draft_vocabulary",
            )
        _ = self.texts
        version = parse_version(self.tensorrt_version) if self.tensorrt_version else None
        return choose_build_targets(self.engines, self.numbers, self.compiling, version, output)


@dataclass(frozen=True)
class BuildContext:
    """What every step of a build shares.

    contract: of both models. staging_dir: the folder that becomes the bundle. cache: of finished stages.
    """

    contract: Contract
    staging_dir: Path
    cache: Path
    progress: Timed
