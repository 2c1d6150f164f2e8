"""Writes the target's answers to the training prompts into a journal, from which a killed run can be resumed.

python examples/train_smollm2_draft/write_answers.py SMOL answers.0.jsonl --part 0/2   # one process per core
"""

from __future__ import annotations

import argparse
import base64
import random
import time
from collections.abc import Container, Iterator
from pathlib import Path

import torch
from batched import Answering, Batched, answers
from library_prompts import ROUTES, prompts
from specexport.calibration.measuring.journal import Journal
from transformers import AutoTokenizer

# Longest prompt and answer, in tokens.
PROMPT, ANSWER = 400, 160
# The temperature of every third answer; the others are greedy.
SAMPLED = 0.8
# The journal's header. Journals of other versions, and those of `specexport tune`, are refused, not replaced.
HEADER = {"answers": "SmolLM2-135M-Instruct", "version": 2}
FOREIGN = "has no answers of this example, or those of an earlier version; give another path"


def requests(folder: Path, part: int, parts: int, done: Container[str], files: dict[str, str]) -> Iterator[Answering]:
    """Yields requests, alternating between routes; more than any run needs. files: gets the file of each key."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    by_route: dict[str, list[tuple[str, str]]] = {route: [] for route in ROUTES}
    for route, text, file in prompts(False, 20_000):
        by_route[route].append((text, file))
    for texts in by_route.values():
        random.Random(5).shuffle(texts)
    number = 0
    for place in range(max(len(texts) for texts in by_route.values())):
        for route in ROUTES:
            # Questions gain least from lookups and have the shortest prompts, so they get six of ten answers.
            for one in range(6 * place, 6 * place + 6) if route == "question" else (place,):
                if one >= len(by_route[route]):
                    continue
                number += 1
                key = f"{route} {one}"
                if number % parts != part or key in done:
                    continue
                text, files[key] = by_route[route][one]
                chat = [{"role": "user", "content": text}]
                ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
                if len(ids) <= PROMPT:
                    yield Answering(key, route, list(ids), SAMPLED if one % 3 == 2 else 0.0)


def packed(rows: list[torch.Tensor]) -> str:
    return base64.b64encode(torch.stack(rows).numpy().tobytes()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the folder made by `python scripts/smollm2.py FOLDER`")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--part", default="0/1", help="which part of the prompts, of how many: e.g. 0/2")
    parser.add_argument("--tokens", type=int, default=500_000, help="tokens of answers to write")
    parser.add_argument("--slots", type=int, default=48)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, arguments.part.split("/"))
    files: dict[str, str] = {}
    with Journal.open(arguments.journal, HEADER, FOREIGN) as journal:
        written = sum(len(row["tokens"]) for row in journal.finished.values())
        model = Batched(arguments.target, arguments.slots, PROMPT + ANSWER + 1)
        asked = requests(arguments.target, part, parts, journal.finished, files)
        started, before = time.process_time(), written
        for number, one in enumerate(answers(model, asked, ANSWER, part), 1):
            row = {"route": one.route, "file": files[one.key], "prompt": one.prompt, "tokens": one.tokens}
            journal.add(one.key, {**row, "ids": packed(one.ids), "logprobs": packed(one.logprobs)})
            written += len(one.tokens)
            if number % 25 == 0:
                rate = (written - before) / (time.process_time() - started)
                print(f"{number} answers, {written} tokens, {rate:.0f} a second of this core", flush=True)
            if written >= arguments.tokens:
                break


if __name__ == "__main__":
    main()
