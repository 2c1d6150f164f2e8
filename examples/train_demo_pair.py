"""Train the demo pair on the standard library's sources and documentation (see `corpus.py`).

    python examples/train_demo_pair.py --output examples/demo_pair

1. a byte-level BPE tokenizer of 4096 tokens, in which each digit is a token;
2. the target by next-token prediction, and on the same batches the draft by distillation from the target's logits
   (forward KL), so that both share the target's forward pass;
3. the draft again, on text that the target itself generates (on-policy distillation, Zhou et al. 2023,
   arXiv 2310.08461), which is the text that it must predict in use.

Weights are written as fp16 safetensors, together with `training.log` (JSON lines).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from corpus import Document, documents
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
END = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}# {{ message['role'] }}\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant\n{% endif %}"
)
SHARED = dict(
    vocab_size=VOCABULARY,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=None,
)
TARGET = LlamaConfig(
    hidden_size=512, intermediate_size=1408, num_hidden_layers=5, num_attention_heads=8, num_key_value_heads=4, **SHARED
)
DRAFT = LlamaConfig(
    hidden_size=192, intermediate_size=512, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, **SHARED
)


class Log:
    """JSON lines to a file and to the terminal, each with the seconds since the start."""

    def __init__(self, path: Path, append: bool) -> None:
        self.file = path.open("a" if append else "w", encoding="utf-8")
        self.start = time.monotonic()

    def __call__(self, **row: object) -> None:
        line = json.dumps({"seconds": round(time.monotonic() - self.start), **row})
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # A run of indentation stays one word; each digit is a word.
            pre_tokenizers.Split(Regex(r"\d|\n+ *| ?[^\s\d\w]+| ?[^\W\d]+|\s+(?!\S)|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """All texts concatenated, each followed by the end token: `[tokens] int64`."""
    encoded = tokenizer.backend_tokenizer.encode_batch(texts)
    return torch.tensor([token for item in encoded for token in [*item.ids, 0]], dtype=torch.int64)


def batches(stream: torch.Tensor, length: int, tokens: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless `[tokens / length, length]` batches: every epoch at a new offset, its windows shuffled."""
    rng = torch.Generator().manual_seed(seed)
    rows = tokens // length
    while True:
        offset = int(torch.randint(0, length, (1,), generator=rng))
        windows = stream[offset : offset + (len(stream) - offset) // length * length].view(-1, length)
        order = torch.randperm(len(windows), generator=rng)
        for start in range(0, len(order) - rows + 1, rows):
            yield windows[order[start : start + rows]]


class Optimizer:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms; warm-up, then linear decay to zero."""

    def __init__(self, model: LlamaForCausalLM, matrix_rate: float, other_rate: float, steps: int) -> None:
        inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        other = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.parts = [
            torch.optim.Muon(inner, lr=matrix_rate, momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(other, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        warm_up = min(20, steps // 10 + 1)

        def rate(step: int) -> float:
            return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))

        self.schedules = [torch.optim.lr_scheduler.LambdaLR(part, rate) for part in self.parts]

    def step(self) -> None:
        for part, schedule in zip(self.parts, self.schedules, strict=True):
            part.step()
            part.zero_grad(set_to_none=True)
            schedule.step()


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def distillation_loss(draft: LlamaForCausalLM, tokens: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """KL(target || draft) per token; `target_logits` `[batch, length, vocab]`."""
    with autocast():
        logits = draft(tokens).logits
    target = F.log_softmax(target_logits.detach().float().flatten(0, 1), dim=-1)
    return F.kl_div(F.log_softmax(logits.float().flatten(0, 1), dim=-1), target, reduction="batchmean", log_target=True)


def train(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    batch_at: Callable[[int], torch.Tensor],
    steps: int,
    rate: float,
    log: Log,
) -> None:
    """Next-token prediction for the target, distillation for the draft. batch_at: tokens `[rows, length] int64`."""
    optimizers = [
        Optimizer(target, 0.02 * rate, 0.004 * rate, steps),
        Optimizer(draft, 0.02 * rate, 0.006 * rate, steps),
    ]
    for step in range(steps):
        batch = batch_at(step)
        with autocast():
            logits = target(batch).logits
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        distillation = distillation_loss(draft, batch, logits)
        distillation.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            agreement = (draft(batch[:2]).logits.argmax(-1) == logits[:2].argmax(-1)).float().mean()
            rows = dict(loss=loss, kl=distillation, agreement=agreement)
            log(stage="train", step=step, **{name: round(value.item(), 3) for name, value in rows.items()})


@torch.no_grad()
def generate(target: LlamaForCausalLM, stream: torch.Tensor, rows: int, greedy: bool) -> torch.Tensor:
    """Continue `rows` random windows of 64 tokens by 192 tokens that the target generates: `[rows, 256] int64`."""
    starts = torch.randint(0, len(stream) - 64, (rows,))
    prompts = torch.stack([stream[start : start + 64] for start in starts])
    mask = torch.ones_like(prompts)
    return target.generate(
        prompts, attention_mask=mask, max_new_tokens=192, min_new_tokens=192, do_sample=not greedy, top_k=None
    )


def distill(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, stream: torch.Tensor, rounds: int, rows: int, log: Log
) -> None:
    """On-policy distillation: each round generates `rows` rows, greedy in two of three rounds, and trains on all rows
    that are kept.
    """
    passes = max(1, rows // 16)
    optimizer = Optimizer(draft, 0.01, 0.003, rounds * passes)
    corpus = batches(stream, 256, 4096, 3)
    kept = torch.empty(0, 256, dtype=torch.int64)
    fast = copy.deepcopy(target).bfloat16()
    for index in range(rounds):
        new = generate(fast, stream, rows, greedy=index % 3 != 2)
        kept = torch.cat([kept, new])
        for step in range(passes):
            own = new[step * 16 : step * 16 + 16]
            older = kept[torch.randint(0, len(kept), (16,))]
            batch = torch.cat([own, older, next(corpus)])
            with torch.no_grad(), autocast():
                logits = target(batch).logits
            loss = distillation_loss(draft, batch, logits)
            loss.backward()
            optimizer.step()
        agreement = (draft(own).logits.argmax(-1) == logits[: len(own)].argmax(-1)).float()[:, 64:].mean()
        log(stage="distill", round=index, kl=round(loss.item(), 4), own_agreement=round(agreement.item(), 3))


@torch.no_grad()
def perplexity(model: LlamaForCausalLM, stream: torch.Tensor) -> float:
    windows = stream[: len(stream) // 512 * 512].view(-1, 512)[:96]
    losses = [model(w[None], labels=w[None]).loss.item() for w in windows]
    return round(math.exp(sum(losses) / len(losses)), 3)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.generation_config.eos_token_id = 0
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=440, help="optimizer steps of the joint training")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens per step")
    parser.add_argument("--rounds", type=int, default=16, help="rounds of on-policy distillation")
    parser.add_argument("--rows", type=int, default=96, help="continuations that the target generates per round")
    parser.add_argument("--resume", action="store_true", help="continue with the pair in --output, and only distill")
    parser.add_argument("--seed", type=int, help="seed for the windows to continue; 1 when resuming, else 0")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.output / "training.log", append=arguments.resume)
    torch.manual_seed(arguments.seed if arguments.seed is not None else int(arguments.resume))
    random.seed(0)

    found = documents()
    trained = [document for document in found if not document.held_out]
    # Documentation is a tenth of the text, so it is read twice as often. Random digits teach the models that these
    # cannot be predicted.
    weighted = [d for d in trained for _ in range(2 if d.route == "prose" else 1)]
    random.shuffle(weighted)
    tokenizer = train_tokenizer([d.text for d in trained if d.route != "random"])
    stream = token_stream(tokenizer, [d.text for d in weighted])
    log(stage="start", arguments={name: str(value) for name, value in vars(arguments).items() if name != "output"})
    log(
        stage="corpus",
        python=platform.python_version(),
        documents=len(trained),
        tokens=len(stream),
        torch=torch.__version__,
    )

    if arguments.resume:
        folders = arguments.output / "target", arguments.output / "draft"
        target, draft = (LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders)
    else:
        target, draft = LlamaForCausalLM(TARGET), LlamaForCausalLM(DRAFT)
        log(stage="models", target=target.num_parameters(), draft=draft.num_parameters())
        short, long = batches(stream, 512, arguments.tokens, 1), batches(stream, 1024, arguments.tokens, 2)
        last = arguments.steps * 5 // 6  # from here on at twice the length
        train(target, draft, lambda step: next(short if step < last else long), arguments.steps, 1.0, log)
        save(target, tokenizer, arguments.output / "target")
        save(draft, tokenizer, arguments.output / "draft")
    distill(target, draft, stream, arguments.rounds, arguments.rows, log)
    save(draft, tokenizer, arguments.output / "draft")

    def held_out(route: str) -> list[Document]:
        return [d for d in found if d.held_out and d.route == route]

    for route in ("code", "prose"):
        text = token_stream(tokenizer, [d.text for d in held_out(route)])
        log(
            stage="held-out",
            route=route,
            target_perplexity=perplexity(target, text),
            draft_perplexity=perplexity(draft, text),
        )


if __name__ == "__main__":
    main()
