"""Train the draft of SmolLM2-135M-Instruct on its answers.

    python scripts/smollm2.py SMOL
    specexport build --target SMOL --precision int8 -o smol.bundle
    python examples/train_smollm2_draft/train.py SMOL smol.bundle --output draft      # hours; answers are kept
    python scripts/write_gguf.py draft examples/smollm2_draft.gguf --kind Q5_0

The draft is a wide and shallow Llama with the target's most frequent tokens. Its embeddings are initialized with the
target's, projected to their leading singular vectors; everything else is initialized at random. Answers, loss,
optimizer and evaluation are those of `specexport tune`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import specexport
import torch
from library_prompts import ROUTES, prompts
from safetensors import safe_open
from small_vocabulary import Ids, choose, cut
from specexport.calibration.measuring.journal import Journal
from specexport.calibration.measuring.prompts import Progress, Request, silent
from specexport.exporter.tuning.answers import FOREIGN, Answer, Answers, Job, journal_header, write_answers
from specexport.exporter.tuning.drafts import Draft
from specexport.exporter.tuning.options import TuneOptions
from specexport.exporter.tuning.tune import tune
from specexport.runtime.session import Session
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

# Longest prompt and answer, in tokens.
PROMPT, ANSWER = 400, 160
# The temperature of every third answer; the others are greedy.
SAMPLED = 0.8
# Percentage of source files: prompts about these judge the draft.
JUDGING = 6


@dataclass(frozen=True)
class Row:
    """One answer. file: the library file that the prompt was taken from."""

    file: str
    sampled: bool
    answer: Answer


def requests(session: Session) -> Iterator[tuple[Request, str]]:
    """Requests with the files of their prompts, alternating between routes; more than any run needs."""
    by_route: dict[str, list[tuple[str, str]]] = {route: [] for route in ROUTES}
    for route, text, file in prompts(False, 20_000):
        by_route[route].append((text, file))
    for texts in by_route.values():
        random.Random(5).shuffle(texts)
    for place in range(max(len(texts) for texts in by_route.values())):
        for route, texts in by_route.items():
            # Questions gain least from lookups and have the shortest prompts, so they get six of ten answers.
            some = slice(6 * place, 6 * place + 6) if route == "question" else slice(place, place + 1)
            for text, file in texts[some]:
                ids = session.encode([{"role": "user", "content": text}])
                if len(ids) <= PROMPT:
                    yield Request(place, route, tuple(ids), ANSWER), file


def answered(bundle: Path, journal: Path, tokens: int) -> list[Row]:
    """Answers of together about so many tokens; those that the journal has are not written again."""
    rows: list[Row] = []
    written = 0
    with specexport.load(bundle) as session, Journal.open(journal, journal_header(session), FOREIGN) as kept:
        for number, (request, file) in enumerate(requests(session)):
            job = Job(request, SAMPLED if number % 3 == 2 else 0.0, 0)
            for answer in write_answers(session, [job], kept, silent):
                rows.append(Row(file, job.temperature > 0, answer))
                written += len(answer.tokens)
            if number % 25 == 0:
                print(f"{len(rows)} answers, {written} of {tokens} tokens", file=sys.stderr, flush=True)
            if written >= tokens:
                break
    return rows


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
    parser.add_argument("target", type=Path, help="the folder made by `python scripts/smollm2.py FOLDER`")
    parser.add_argument("bundle", type=Path, help="a bundle of it")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--journal", type=Path, default=Path("answers.jsonl"))
    parser.add_argument("--tokens", type=int, default=300_000, help="tokens of answers to train on")
    parser.add_argument("--vocabulary", type=int, default=6144, help="tokens to keep")
    parser.add_argument("--shape", default="2x256x768", help="layers, width, inner width")
    parser.add_argument("--start", type=Path, help="a draft to continue training, e.g. with more answers")
    parser.add_argument("--step", type=int, default=1024, help="tokens per step, prompts included")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2.0, help="learning rate, relative to that of `specexport tune`")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    display = Display(arguments.output.with_suffix(".log"))
    parts = parted(answered(arguments.bundle, arguments.journal, arguments.tokens))
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
