"""transformers' assisted generation on torch's CPU kernels, `--precision` fp32 or bf16.

Without a draft model it uses its prompt lookup (`prompt_lookup_num_tokens`).
"""

from __future__ import annotations

from argparse import Namespace

import numpy
import torch
import transformers
from protocol import Answer, Stopwatch, parse_arguments, serve
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer


class Watching(BaseStreamer):
    """Counts rounds and times tokens: `generate` puts the prompt first, then the tokens of every round."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self.rounds = -1  # the first one ends the prefill
        self.prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self.prompt:
            self.prompt = False
            return
        self.rounds += 1
        self.watch.add(value.flatten().tolist())

    def end(self) -> None:
        pass


class TransformersRunner:
    def __init__(self, arguments: Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
        load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()  # noqa: E731
        self.target = load(arguments.target)
        self.draft = load(arguments.draft) if arguments.draft else None
        self.name = f"transformers {arguments.precision}"
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.speculative = True

    def generate(self, prompt: list[int], new_tokens: int, speculative: bool, k: int) -> Answer:
        streamer = Watching()
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
        more = {}
        if speculative and self.draft is None:
            config.prompt_lookup_num_tokens = k
        if speculative and self.draft is not None:
            # These are read from the assistant's own configuration: k in every round, whatever its confidence is.
            for name, value in (
                ("num_assistant_tokens", k),
                ("num_assistant_tokens_schedule", "constant"),
                ("assistant_confidence_threshold", 0),
            ):
                setattr(self.draft.generation_config, name, value)
            self.draft.generation_config.eos_token_id = None
            more["assistant_model"] = self.draft
        self.target.generation_config.eos_token_id = None
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            self.target.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=streamer, **more
            )
        return streamer.watch.answer(new_tokens, streamer.rounds)

    def logits_of(self, tokens: list[int]) -> numpy.ndarray:
        with torch.inference_mode():
            return self.target(torch.tensor([tokens])).logits[0].float().numpy()


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    serve(lambda: TransformersRunner(arguments))
