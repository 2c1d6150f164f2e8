"""The pairs that are built: a tiny one for tests of samples, the demo pair or one of its sizes, and common sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from specexport.bundle import ELEMENT_BYTES, Bundle, Format, Precision, Role
from specexport.engines.cuda.driver import Gpu
from specexport.runtime.session import Session
from specexport.runtime.text.prompt_file import read_prompts

from .llama import Hybrid, Llama

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA_1B = Llama(16, 2048, 32, 8, 8192, 128256, tied=True, positions=4096)
LLAMA_8B = Llama(32, 4096, 32, 8, 14336, 128256, tied=False, positions=4096)
# The demo pair's sizes, for checkouts without it.
SMALL = Llama(5, 512, 8, 4, 1408, 4096, tied=True, positions=1024)
SMALL_DRAFT = Llama(2, 192, 6, 2, 512, 4096, tied=True, positions=1024)
# Few tokens, so that every pair of them occurs often enough for a test; weights large enough that positions matter.
TINY = Llama(2, 64, 4, 2, 128, 16, tied=False, positions=2048, spread=0.15)
# The kernels for states of 64 rows are those of real hybrids.
HYBRID = Hybrid(4, 256, 4, 2, 512, 512, tied=True, positions=1024, spread=0.1)


@dataclass(frozen=True)
class Shape:
    """A pair and what its bundle is for.

    target: None for the demo pair. strangeness: of the draft, if it is the target with other weights mixed in.
    sampled: whether the vocabulary is small enough for chi-squared tests. asked_speed: whether single passes must be as
    fast as `thresholds.py` requires. walks: whether the ladder is proved over the whole cache against transformers.
    """

    name: str
    target: Llama | None
    draft: Llama | None
    capacity: int
    max_draft_tokens: int
    strangeness: float = 0.0
    sampled: bool = False
    asked_speed: bool = False
    walks: bool = False

    def checkpoints(self, folder: Path) -> dict[Role, Path]:
        """Where the checkpoints are, or will be under `folder`."""
        place = EXAMPLES / "demo_pair" if self.target is None else folder
        return {"target": place / "target", "draft": place / "draft"}

    def write(self, folder: Path) -> None:
        """Make the checkpoints; those of the demo pair exist already."""
        if self.target is None or self.draft is None:
            return
        from .checkpoints import write_checkpoint  # this imports torch, which takes seconds

        places = self.checkpoints(folder)
        write_checkpoint(places["target"], self.target, seed=1)
        # With the same seed if it should resemble the target.
        write_checkpoint(places["draft"], self.draft, seed=1 if self.strangeness else 2, strangeness=self.strangeness)

    @property
    def num_parameters(self) -> int:
        return sum(model.num_parameters for model in (self.target, self.draft) if model is not None)

    def fits(self, gpu: Gpu, precision: str) -> bool:
        """Whether weights (as if in fp16) and caches leave a tenth and 2 GiB of the memory for everything else."""
        models = [model for model in (self.target, self.draft) if model is not None]
        rows = sum(2 * model.layers * model.kv_heads * model.head_dim * self.capacity for model in models)
        element = next((size for name, size in ELEMENT_BYTES.items() if name == precision), ELEMENT_BYTES["fp16"])
        needed = element * (rows + self.num_parameters)
        return needed + 2 * 2**30 <= 0.9 * gpu.memory

    def prompts(self, session: Session, count: int) -> list[list[int]]:
        """`count` prompts of some dozens of tokens."""
        if self.target is None:
            files = [EXAMPLES / f"prompts/{route}.jsonl" for route in ("code", "prose", "random")]
            texts = [read_prompts(file)[: -(-count // 3)] for file in files]
            return [session.encode(text) for row in zip(*texts, strict=True) for text in row][:count]
        rng = np.random.default_rng(0)
        vocab_size = self.target.vocab_size
        return [rng.integers(0, vocab_size, 40 + 7 * index).tolist() for index in range(count)]


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", TINY, TINY, 2048, 4, strangeness=0.1, sampled=True, walks=True),
        Shape("hybrid", HYBRID, HYBRID, 1024, 4, strangeness=0.1),
        Shape("small", SMALL, SMALL_DRAFT, 1024, 7, walks=True),
        Shape("demo", None, None, 1024, 7, walks=True),
        Shape("1b", LLAMA_1B, LLAMA_1B, 2048, 7),
        Shape("8b", LLAMA_8B, LLAMA_1B, 2048, 7, asked_speed=True),
    )
}
LARGE = ("8b", "1b")
VALUES_A_BYTE: dict[Format, int] = {"int8": 1, "fp8": 1, "int4": 2}


def has_demo_pair() -> bool:
    """Whether the demo pair is there; a sparse checkout may lack it."""
    return all((folder / "config.json").is_file() for folder in SHAPES["demo"].checkpoints(EXAMPLES).values())


def default_shapes(gpu: Gpu, precision: str, quick: bool) -> list[str]:
    """Tiny, demo (or its sizes, if it is missing), and unless it must be quick, the largest that fits in memory."""
    largest = next((name for name in LARGE if SHAPES[name].fits(gpu, precision)), None)
    return ["tiny", "demo" if has_demo_pair() else "small", *([largest] if largest and not quick else [])]


def bytes_read(checkpoint: Path, precision: Precision) -> int:
    """Bytes of weights that a pass of one token reads: all, except an embedding table, of which it reads one row."""
    from specexport.exporter.checkpoints.find import find_checkpoint

    elements = find_checkpoint(str(checkpoint)).fp32_bytes // 4
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings"):
        elements -= config["vocab_size"] * config["hidden_size"]
    return ELEMENT_BYTES[precision] * elements


def stored_bytes_read(bundle: Bundle, checkpoint: Path) -> int:
    """Like `bytes_read`, for a target with quantized weights, by what the bundle stores.

    The table's few scales are counted as read.
    """
    target = bundle.manifest.target
    stored = bundle.manifest.files[target.weights].bytes
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings"):
        stored -= config["vocab_size"] * config["hidden_size"] // VALUES_A_BYTE[target.format]
    return stored
