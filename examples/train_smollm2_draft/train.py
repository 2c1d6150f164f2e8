"""Train the draft of SmolLM2-135M-Instruct on its answers.

    python scripts/smollm2.py SMOL
    python examples/train_smollm2_draft/write_answers.py SMOL answers.0.jsonl --part 0/2 &      # hours
    python examples/train_smollm2_draft/write_answers.py SMOL answers.1.jsonl --part 1/2
    python examples/train_smollm2_draft/train.py SMOL answers.*.jsonl --output draft
    python scripts/write_gguf.py draft examples/smollm2_draft.gguf --kind Q5_0

The draft is a wide and shallow Llama with the target's most frequent tokens. Its embeddings are initialized with the
target's, projected to their leading singular vectors; everything else is initialized at random. Loss, optimizer and
evaluation are those of `specexport tune`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from small_vocabulary import Ids, choose, cut
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.progress import Progress
from specexport.exporter.tuning.answers import Answer, Answers
from specexport.exporter.tuning.drafts import Draft
from specexport.exporter.tuning.options import TuneOptions
from specexport.exporter.tuning.tune import tune
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from write_answers import FOREIGN, HEADER

# Percentage of source files: prompts about these judge the draft.
JUDGING = 6
# The index of the sampled answer among three (`write_answers.py`).
SAMPLED = 2


@dataclass(frozen=True)
class Row:
    """One answer. file: the library file that the prompt was taken from. sampled: whether it is sampled, not greedy."""

    file: str
    sampled: bool
    answer: Answer


def read(journals: Sequence[Path]) -> list[Row]:
    found = []
    for path in journals:
        with Journal.open(path, HEADER, FOREIGN) as journal:
            for key, row in journal.finished.items():
                shape = (len(row["tokens"]), -1)
                ids = np.frombuffer(base64.b64decode(row["ids"]), "<i4").reshape(shape)
                logprobs = np.frombuffer(base64.b64decode(row["logprobs"]), "<f2").reshape(shape)
                answer = Answer(row["route"], tuple(row["prompt"]), tuple(row["tokens"]), ids, logprobs)
                found.append(Row(row["file"], int(key.split()[1]) % 3 == SAMPLED, answer))
    return found


def parted(rows: Sequence[Row]) -> Answers:
    """The rows split by file, since several prompts are made from each piece of a file."""
    parts = Answers([], [])
    for row in rows:
        if int(hashlib.sha256(row.file.encode()).hexdigest(), 16) % 100 >= JUDGING:
            parts.training.append(row.answer)
        elif not row.sampled:  # drafts are judged on greedy answers
            parts.judging.append(row.answer)
    return parts


def new_model(target: Path, kept: Sequence[int], layers: int, width: int, inner: int) -> LlamaForCausalLM:
    """A new model, whose embeddings are the target's, projected to their leading singular vectors."""
    whole = LlamaConfig.from_pretrained(target)
    heads = width // whole.head_dim
    config = LlamaConfig(
        vocab_size=len(kept),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        max_position_embeddings=whole.max_position_embeddings,
        rope_parameters=whole.rope_parameters,
        tie_word_embeddings=True,
        bos_token_id=list(kept).index(whole.bos_token_id),
        eos_token_id=list(kept).index(whole.eos_token_id),
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with safe_open(target / "model.safetensors", "pt") as file:
        table = file.get_tensor("model.embed_tokens.weight")[list(kept)]
    _, _, turned = torch.linalg.svd(table, full_matrices=False)
    table = table @ turned[:width].T
    model.model.embed_tokens.weight.data.copy_(table * (config.initializer_range / table.std()))
    return model


class Display:
    def __init__(self, log: Path) -> None:
        self.log, self.start = log, time.monotonic()

    @contextmanager
    def stage(self, label: str) -> Iterator[Progress]:
        def progress(done: int, total: int) -> None:
            if done % 10 == 0:
                print(f"{label} {done} of {total}, {time.monotonic() - self.start:.0f} s", file=sys.stderr, flush=True)

        yield progress

    def note(self, message: str) -> None:
        line = json.dumps({"seconds": round(time.monotonic() - self.start), "note": message})
        print(line, flush=True)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("journals", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=6144, help="tokens to keep")
    parser.add_argument("--shape", default="2x256x768", help="layers, width, inner width")
    parser.add_argument("--start", type=Path, help="a draft to continue training, e.g. with more answers")
    parser.add_argument("--step", type=int, default=1024, help="tokens per step, prompts included")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2.0, help="learning rate, relative to that of `specexport tune`")
    parser.add_argument("--tokens", type=int, help="most tokens of answers to train on")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    display = Display(arguments.output.with_suffix(".log"))
    rows = read(arguments.journals)
    if arguments.tokens:
        sizes = np.cumsum([len(row.answer.tokens) for row in rows])
        rows = [row for row, size in zip(rows, sizes, strict=True) if size <= arguments.tokens]
    parts = parted(rows)
    target = AutoTokenizer.from_pretrained(arguments.target)
    if arguments.start:
        tokenizer = AutoTokenizer.from_pretrained(arguments.start)
        kept = target.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    else:
        kept = choose(parts.training, json.loads(target.backend_tokenizer.to_str()), arguments.vocabulary)
        tokenizer = cut(target, kept)
    ids = Ids.between(target, tokenizer)
    judged = [token for answer in parts.judging for token in answer.tokens]
    written = sum(len(answer.tokens) for answer in parts.training)
    covered = np.mean(ids.exact[judged] >= 0)
    display.note(
        f"{written} tokens of {len(parts.training)} answers; the {len(kept)} kept tokens are {covered:.2%} of those "
        "of held-out answers"
    )
    if arguments.start:
        model = LlamaForCausalLM.from_pretrained(arguments.start, dtype=torch.float32)
    else:
        model = new_model(arguments.target, kept, *map(int, arguments.shape.split("x")))
    display.note(f"{model.num_parameters() / 1e6:.2f} M weights")
    answers = Answers([ids.translate(one) for one in parts.training], [ids.to_judge(one) for one in parts.judging])
    options = TuneOptions(epochs=arguments.epochs, rate=arguments.rate, step=arguments.step)
    draft = Draft(model, tokenizer, torch.bfloat16, "new")
    report = tune(draft, answers, arguments.output, options, False, display.stage)
    for one in (*report.routes, report.overall):
        display.note(f"{one.route}: {one.prompts} prompts, {one.before:.1%} to {one.after:.1%} accepted, greedy")


if __name__ == "__main__":
    main()
