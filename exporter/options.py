"""What a build is asked for. Imports nothing heavy, so that a wrong option is refused at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ..bundle import RESERVED, Contract, Precision, check_name
from ..bundle.drafts import LOOKUP as DRAFTER
from ..editing.progress import Timed
from ..engines.catalogue import ENGINES, LIBRARIES, info_of
from ..engines.onnxruntime import kernels
from ..engines.tensorrt.compile import CompileOptions
from ..errors import ParameterError
from .hidden_drafts.fit import Feedback, Said
from .precision import (
    BuildTargets,
    PrecisionPlan,
    choose_build_targets,
    choose_precision_plan,
    default_draft_precision,
    parse_version,
)
from .weights.texts import read_texts

# A `--draft` that exports nothing: drafts are looked up in the text with every bundle.
LOOKUP = "lookup"
LONGEST_NAME = 32


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


# The name of a draft whose path gives none.
UNNAMED = "draft"


def parse_draft(text: str) -> NamedDraft:
    """A `--draft`: a checkpoint, or `NAME=` and one; what exists is a path, whatever its characters.

    Without a name, it is the last word of the path. Raises `ParameterError`.
    """
    before, equals, source = text.partition("=")
    if (source or text) in (LOOKUP, DRAFTER) and not _exists(source or text):
        raise ParameterError(
            f"--draft is {text}; {source or text} is no model: drafts are looked up with every bundle, so leave it out",
            "draft",
        )
    if not equals or "/" in before or not before or _exists(text):
        return NamedDraft(_usual_name(text), text)
    if not source:
        raise ParameterError(f"--draft is {text}; expected NAME=PATH, or just a path", "draft")
    return NamedDraft(before, source)


def parse_drafts(texts: Iterable[str]) -> tuple[NamedDraft, ...]:
    """Raises `ParameterError` for two of one name, and for `LOOKUP` beside others."""
    drafts, given = dict[str, NamedDraft](), list(texts)
    if LOOKUP in given and len(given) > 1:
        raise ParameterError(
            f"--draft {LOOKUP} stands for no draft, and {len(given)} are given; leave it out (drafts are looked up "
            "with every bundle)",
            "draft",
        )
    for draft in (parse_draft(text) for text in given if text != LOOKUP):
        if draft.name in drafts:
            raise ParameterError(
                f"two drafts are called {draft.name!r}, {drafts[draft.name].source} and {draft.source}; "
                "name one of them with --draft NAME=PATH",
                "draft",
            )
        drafts[draft.name] = draft
    return tuple(drafts.values())


def _exists(source: str) -> bool:
    return os.path.lexists(os.path.expanduser(source))  # noqa: PTH111 - of Path, it refuses an unknown user


def _usual_name(source: str) -> str:
    parts = r"[/\\]" if _exists(source) else r"[/:\\]"  # a colon comes after a hub id
    word = re.split(parts, source.rstrip("/\\"))[-1].removesuffix(".gguf")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", word).lstrip("._-")[:LONGEST_NAME]
    return name if name and name not in RESERVED else UNNAMED


def _wrong(option: str, value: object, expected: str) -> ParameterError:
    return ParameterError(f"--{option} is {value}; {expected}", option.replace("-", "_"))


# Wide products pay on a CPU, where a last chunk is as wide as what is left of the prompt. On a GPU it is padded to a
# whole one: on an H100, with an 8B model on ONNX Runtime, 1900 tokens take 0.28 s in chunks of 64 and 0.09 s in those
# of 512, and up to 64 tokens 9 and 21 ms. Plans have a profile for it, whose time nobody has measured.
CHUNK, CPU_CHUNK, GPU_CHUNK = 64, 256, 512
# Beyond this, costs rise and hardly any candidate is accepted.
MAX_TREE_ROWS = 32


@dataclass(frozen=True)
class CalibrationTexts:
    """What a model reads while its layers are observed. own: the user's, not the shipped ones."""

    texts: tuple[str, ...] = ()
    own: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """The options of `specexport build`.

    max_seq_len: None takes what the models' positions allow, up to 4096. prompt_chunk: tokens per prefill pass; None is
    256 for one engine on the CPU, at most 512 for one that runs graphs on a GPU, and otherwise 64. tree_rows: maximum
    candidates of a round, in rows of a step after those of its chain.

    precision: a name of `precision.NAMES`. draft_precision: by default the target's, but see `for_drafts`.
    cache_precision: of keys and values; by default fp16 with quantized weights where `_caches_apart`, else that of
    everything else. fp16 halves what a pass over a long context reads, and the proof allows for its rounding.
    calibration_texts: JSONL of prompts, by default a shipped set. min_overlap: the share of tokens in the calibration
    texts that a draft with another tokenizer must have.

    compiling: for the engines that run plans. tensorrt_version: that of the device, by default this host's. portable:
    for engine `onnxruntime`, whether to add graphs of ONNX Runtime's own operators for hosts without
    specexport-kernels.

    For drafts that read the target's hidden states: draft_taps: which ones, as `hidden_states[i]` of transformers, if
    the checkpoint does not say or is wrong. draft_feedback: `pre` or `post`, whether a drafted row reads the previous
    row's output before or after the last norm. draft_vocabulary: how many tokens an MTP layer or an assistant can
    propose, the most frequent ones in the calibration texts; None for all.
    """

    max_seq_len: int | None = None
    max_draft_tokens: int = 4
    tree_rows: int = 0
    prompt_chunk: int | None = None
    min_overlap: float = 0.5
    precision: str = "fp32"
    draft_precision: str | None = None
    calibration_texts: Path | None = None
    engines: tuple[str, ...] = ("onnxruntime",)
    compiling: CompileOptions = field(default_factory=CompileOptions)
    tensorrt_version: str | None = None
    portable: bool = False
    cache_precision: Precision | None = None
    draft_taps: tuple[int, ...] = ()
    draft_feedback: Feedback | None = None
    draft_vocabulary: int | None = None
    force: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_tokens <= 32:
            raise _wrong("max-draft-tokens", self.max_draft_tokens, "it must be from 1 to 32")
        if self.prompt_chunk is not None and self.prompt_chunk < 1:
            raise _wrong("prompt-chunk", self.prompt_chunk, "it must be at least 1")
        if not 0 <= self.min_overlap <= 1:  # also: NaN
            raise _wrong("min-overlap", self.min_overlap, "it must be from 0 to 1 (0.5: half of the texts' tokens)")
        if not self.engines:
            raise ParameterError("no --engine is given; name at least one", "engine")
        for engine in self.engines:
            info_of(engine)  # raises for one that there is not
        if self.tree_rows:
            self._check_trees()
        if self.max_seq_len is not None:
            self.contract(self.max_seq_len, 1, "fp32")  # before models are read for it
        if self.cache_precision is not None:
            self._check_caches()
        if self.calibration_texts is not None and not self._reads_texts:
            raise ParameterError(
                "--calibration-prompts is for quantized weights and --draft-vocabulary, and --precision is "
                f"{self.precision}; leave it out",
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
            raise _wrong("tree-rows", self.tree_rows, f"it must be from 0 (off) to {MAX_TREE_ROWS}")
        if not all(info_of(engine).trees for engine in self.engines):
            only = " or ".join(name for name, info in ENGINES.items() if info.trees)
            raise ParameterError(
                f"--tree-rows is only for --engine {only}; the engines are {', '.join(self.engines)}", "tree_rows"
            )
        if self.numbers.formats["target"] != "float" and (self.portable or not kernels.availability().usable):
            # on ONNX Runtime's operators, a row outside the chain would break that rows have the same bits in any pass
            why = "with --portable" if self.portable else "without specexport-kernels (see specexport doctor)"
            raise ParameterError(
                f"--tree-rows is for fp32 and fp16 {why}; --precision is {self.precision}", "tree_rows"
            )

    def _check_caches(self) -> None:
        if self.cache_precision not in ("fp32", "fp16"):
            raise _wrong("cache-precision", self.cache_precision, "it must be fp32 or fp16")
        if self.cache_precision == self.numbers.precision:
            return
        if not self._caches_apart:
            raise _wrong(
                "cache-precision",
                self.cache_precision,
                "it differs from the computation only with --engine onnxruntime alone, in fp32, int8 or int4, without "
                "--portable, where specexport-kernels run (see specexport doctor)",
            )

    @property
    def _caches_apart(self) -> bool:
        """Whether the graphs can keep keys and values in another precision than they compute in."""
        by_kernels = kernels.availability().usable and all(info_of(engine).kernels for engine in self.engines)
        return by_kernels and self.numbers.precision == "fp32" and not self.portable

    @property
    def caches(self) -> Precision:
        """The precision of keys and values."""
        if self.cache_precision is not None:
            return self.cache_precision
        rounded = self.numbers.formats["target"] != "float" and self._caches_apart
        return "fp16" if rounded else self.numbers.precision

    def contract(self, capacity: int, chunk: int, precision: Precision, caches: Precision | None = None) -> Contract:
        """Of a cache of that many rows. Raises `ParameterError` where they are too few."""
        try:
            return Contract(capacity, self.max_draft_tokens, chunk, precision, self.tree_rows, caches)
        except ValueError as error:
            raise ParameterError(
                f"--max-seq-len {capacity} and --max-draft-tokens {self.max_draft_tokens}: {error}", "max_seq_len"
            ) from None

    def for_drafts(self, drafts: Sequence[NamedDraft]) -> BuildOptions:
        """With the precision of the drafts, where there are some and their engines have a default."""
        if not drafts or self.draft_precision is not None:
            return self
        default = default_draft_precision(self.engines, self.precision, self.compiling, self._version)
        return replace(self, draft_precision=default) if default else self

    @property
    def _version(self) -> tuple[int, ...] | None:
        return parse_version(self.tensorrt_version) if self.tensorrt_version else None

    @property
    def said(self) -> Said:
        return Said(self.draft_taps, self.draft_feedback)

    @property
    def numbers(self) -> PrecisionPlan:
        return choose_precision_plan(self.engines, self.precision, self.draft_precision)

    @property
    def chunk(self) -> int:
        """Tokens per prefill pass; fewer by default where experts are copied for each (`prompt_chunk`)."""
        if self.prompt_chunk is not None:
            return self.prompt_chunk
        if len(self.engines) > 1 or self.engines[0] in LIBRARIES:
            return CHUNK
        return GPU_CHUNK if info_of(self.engines[0]).on_gpu else CPU_CHUNK

    def longest_chunk(self, capacity: int) -> int:
        """Where chunks are padded, the rows behind the last whole one are fed some tokens at a time: an eighth of the
        cache at most, unless a chunk was asked for.
        """
        padded = self.prompt_chunk is None and any(info_of(engine).on_gpu for engine in self.engines)
        return min(capacity, max(CHUNK, capacity // 8)) if padded else capacity

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
            raise _wrong(
                "draft-precision", self.draft_precision, "there is no --draft that it could be for; leave it out"
            )
        if not drafts and self.tree_rows:
            raise _wrong("tree-rows", self.tree_rows, "there is no --draft to give candidates for them; leave it out")
        if len(drafts) > 1 and "onnxruntime" not in self.engines:
            raise ParameterError(
                f"{len(drafts)} --draft options are given; additional drafts run only with --engine onnxruntime, "
                f"and this build is for {', '.join(self.engines)}; add that engine, or give one draft",
                "draft",
            )
        _ = self.texts
        return choose_build_targets(self.engines, self.numbers, self.compiling, self._version, output, self.portable)


@dataclass(frozen=True)
class BuildContext:
    """What every step of a build shares.

    contract: of both models. staging_dir: the folder that becomes the bundle. cache: of finished stages.
    """

    contract: Contract
    staging_dir: Path
    cache: Path
    progress: Timed
