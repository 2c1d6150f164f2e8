"""The evaluation harness `lm-eval`: multiple choice and perplexity over HTTP, on texts that Python and babel ship.

LIMIT: documents of each task, 0 for all. RESULTS: a file for the numbers, which `scores.py` reads.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from babel import Locale
from babel.languages import get_official_languages
from harness import MODEL, PLAIN, check, command, expect, main, tokenizer_folder

CHOICES = 4
TASKS = {"languages": "acc", "last_words": "acc", "python_topics": "bits_per_byte"}


def languages() -> Iterator[dict[str, Any]]:
    """The official language of each territory that has one, of CLDR, among others."""
    english, draw = Locale("en"), random.Random(0)
    spoken = {}
    for code, name in sorted(english.territories.items()):
        found = get_official_languages(code) if len(code) == 2 else ()
        if len(found) == 1 and found[0] in english.languages:
            spoken[name] = english.languages[found[0]]
    names = sorted(set(spoken.values()))
    for territory, language in spoken.items():
        yield question(f"The official language of {territory} is", language, names, draw)


def paragraphs() -> Iterator[tuple[str, str]]:
    """(topic, paragraph) of prose in Python's manual."""
    for topic, text in sorted(topics.items()):
        for part in text.split("\n\n"):
            if re.match(r"[A-Z]", part) and len(part.split()) >= 12:
                yield topic, " ".join(part.split())


def last_words() -> Iterator[dict[str, Any]]:
    """A paragraph's last word, among those of others."""
    draw = random.Random(0)
    ends = [match for _, text in paragraphs() if (match := re.fullmatch(r"(.+) ([a-z]{4,})\.", text))]
    words = sorted({match[2] for match in ends})
    for match in draw.sample(ends, 200):
        yield question(" ".join(match[1].split()[-40:]), match[2], words, draw)


def python_topics() -> Iterator[dict[str, Any]]:
    """The longest topics, 300 words of each."""
    by_topic: dict[str, list[str]] = {}
    for topic, text in paragraphs():
        by_topic.setdefault(topic, []).extend(text.split())
    for words in sorted(by_topic.values(), key=len, reverse=True)[:40]:
        yield {"text": " ".join(words[:300])}


def question(context: str, right: str, words: list[str], draw: random.Random) -> dict[str, Any]:
    choices = [right, *draw.sample([word for word in words if word != right], CHOICES - 1)]
    draw.shuffle(choices)
    return {"context": context, "choices": choices, "answer": choices.index(right)}


def write_task(name: str, documents: Iterable[dict[str, Any]], limit: int | None) -> None:
    """In lm-eval's own form; JSON is YAML as well."""
    data = Path(f"{name}.jsonl").resolve()
    data.write_text("".join(f"{json.dumps(one)}\n" for one in list(documents)[:limit]), encoding="utf-8")
    task: dict[str, Any] = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metric_list": [{"metric": TASKS[name]}],
    }
    if TASKS[name] == "acc":
        asked = {"doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}", "doc_to_target": "answer"}
        task |= {"output_type": "multiple_choice", **asked}
    else:
        task |= {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"}
    Path(f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")


def error_of_bits() -> float:
    """The standard error of bits per byte, a ratio of sums over documents."""
    (path,) = Path("found").rglob("samples_python_topics_*.jsonl")
    pairs = [json.loads(line)["bits_per_byte"] for line in path.read_text(encoding="utf-8").splitlines()]
    total = sum(size for _, size in pairs)
    mean = -sum(logprob for logprob, _ in pairs) / total
    square = sum((-logprob - mean * size) ** 2 for logprob, size in pairs)
    return math.sqrt(square * len(pairs) / (len(pairs) - 1)) / total / math.log(2)


@check
def scores() -> None:
    limit = int(os.environ.get("LIMIT", "4")) or None
    for name, documents in zip(TASKS, (languages(), last_words(), python_topics()), strict=True):
        write_task(name, documents, limit)
    folder = tokenizer_folder()
    added = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    start = next(one["id"] for one in added if one["special"])  # what a text without a context follows
    model = f"model={MODEL},base_url={PLAIN}/completions,tokenizer={folder},custom_prefix_token_id={start}"
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(Path("cache").resolve())}
    command(
        "lm_eval", "run", "--model", "local-completions", "--tasks", *TASKS, "--include_path", ".",
        "--model_args", f"{model},max_length=1024,tokenizer_backend=huggingface,num_concurrent=1,max_retries=1",
        "--batch_size", "8", "--output_path", "found", "--log_samples",
    )  # fmt: skip
    (path,) = Path("found").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    expect(set(results) == set(TASKS), results)
    found = {
        name: [results[name][f"{metric},none"], results[name][f"{metric}_stderr,none"]]
        for name, metric in TASKS.items()
    }
    found["python_topics"][1] = error_of_bits()  # lm-eval has none
    expect(all(isinstance(value, float) for pair in found.values() for value in pair), found)
    if "RESULTS" in os.environ:
        Path(os.environ["RESULTS"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
