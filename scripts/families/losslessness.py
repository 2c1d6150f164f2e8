"""One family: is speculative output the target's own over many requests, whatever is drafted, rejected and reused?

A bundle is built from a tiny random target and a draft whose weights differ from it so much that it is right only now
and then. All requests go to one session, which keeps its caches and states from request to request: prompts begin with
nothing, with a part, or with all of an earlier prompt and its answer, may repeat themselves, and draft 0 to 4 tokens
per round by the model, by lookup or by both. A second session decodes each of them plainly, from an empty cache.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from specexport import Session, load
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.runtime.proofs.equality import decode_request, judge
from specexport.runtime.sampling.parameters import SamplingParameters
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from .attempt import save_tiny
from .sizes import VOCAB

CAPACITY, LONGEST, NEW_TOKENS = 128, 48, 20
NOISE = 0.03  # by how much the draft's weights differ, relative to their size
DRAFTERS = ("model", "model", "ngram", "ngram+model")
# Families whose layers keep states; some of them also have attention of an unusual form.
STATES = ("qwen3_5_text", "qwen3_next", "lfm2", "lfm2_moe", "granitemoehybrid", "nemotron_h", "falcon_h1", "bamba")
FAMILIES = (*STATES, "kimi_linear", "olmo_hybrid", "jamba", "zamba2", "gpt_oss", "deepseek_v3", "llama4_text")


@dataclass
class Found:
    """Numbers of requests by their result, and of tokens by their kind. first: one line about the first request that
    differs.

    ties: outputs that first differ where two logits are closer than the width of a pass changes them.
    """

    equal: int = 0
    ties: int = 0
    different: int = 0
    drafted: int = 0
    accepted: int = 0
    looked_up: int = 0
    reused: int = 0
    first: str = field(default="")

    @property
    def requests(self) -> int:
        return self.equal + self.ties + self.different

    def __str__(self) -> str:
        said = "all equal" if self.equal == self.requests else f"{self.equal} equal, {self.ties} near ties"
        if self.different:
            said += f", {self.different} different, first {self.first}"
        return (
            f"{said}; {self.requests} requests, {self.accepted} of {self.drafted} draft tokens accepted, "
            f"{self.looked_up} requests with lookups, {self.reused} behind rows of earlier ones"
        )


@dataclass(frozen=True)
class Asked:
    prompt: tuple[int, ...]
    drafter: str
    num_draft_tokens: int


def compare(family: str, count: int, seed: int = 0) -> Found:
    """Send `count` requests to the family's tiny pair."""
    with tempfile.TemporaryDirectory(prefix="family-") as name:
        bundle = make_pair(family, Path(name))
        with (
            load(bundle, policy=False, threads=1, prompt_cache_bytes=2**24) as session,
            load(bundle, policy=False, threads=1) as plain,
        ):
            return ask(session, plain, count, random.Random(seed))


def ask(session: Session, plain: Session, count: int, draw: random.Random) -> Found:
    """Send requests to both sessions. session: keeps its caches between requests. plain: starts empty each time."""
    found, texts = Found(), list[tuple[int, ...]]()
    for number in range(count):
        asked = _asked(draw, texts, min(LONGEST, session.capacity - NEW_TOKENS))
        params = SamplingParameters(
            stop_token_ids=(),
            max_new_tokens=NEW_TOKENS,
            drafter=asked.drafter,
            num_draft_tokens=asked.num_draft_tokens,
        )
        output = decode_request(session, asked.prompt, params)
        plain.reset()
        expected = plain.generate(asked.prompt, params, speculate=False).tokens
        texts.append((*asked.prompt, *output.tokens))
        found.drafted += output.statistics.drafted
        found.accepted += output.statistics.accepted
        found.looked_up += asked.drafter != "model"
        found.reused += bool(output.statistics.reused_tokens)
        if tuple(output.tokens) == tuple(expected):
            found.equal += 1
            continue
        plain.reset()
        verdict = judge(plain, asked.prompt, expected, output.tokens, output.widths)
        plain.reset()
        # Reused rows of an earlier request may come from passes of other widths, so L1 is not required after them.
        if verdict.near_tie and (verdict.same_width or output.statistics.reused_tokens):
            found.ties += 1
            continue
        found.different += 1
        found.first = found.first or (
            f"request {number}: {asked}, token {verdict.first_difference}, margin {verdict.margin:.1e}, "
            f"widths move logits by {verdict.delta:.1e}"
        )
    return found


def _asked(draw: random.Random, texts: list[tuple[int, ...]], longest: int) -> Asked:
    """A random request: a third start a new text, a third continue a whole earlier text, a third a part of one."""
    start: tuple[int, ...] = ()
    if texts and draw.random() < 2 / 3:
        start = draw.choice(texts[-8:])
        start = start[: len(start) if draw.random() < 0.5 else draw.randint(1, len(start))]
    fresh = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 16))]
    prompt = (*start, *(fresh * draw.choice((1, 1, 3))))
    return Asked(prompt[:longest], draw.choice(DRAFTERS), draw.randint(0, 4))


def make_pair(family: str, folder: Path) -> Path:
    """A bundle of the family's tiny model and a draft like it."""
    save_tiny(family, folder / "target")
    draft = AutoModelForCausalLM.from_pretrained(folder / "target")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += NOISE * parameter.abs().mean() * torch.randn_like(parameter)
    draft.save_pretrained(folder / "draft")
    for role in ("target", "draft"):
        _tokenizer().save_pretrained(folder / role)
    options = BuildOptions(max_seq_len=CAPACITY, prompt_chunk=16, cache=folder / "cache")
    build(str(folder / "target"), str(folder / "draft"), folder / "pair.bundle", options)
    return folder / "pair.bundle"


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one word per token."""
    words = ["<s>", "</s>", *(f"w{number}" for number in range(2, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<s>")
