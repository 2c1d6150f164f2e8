"""OpenVINO GenAI: LLMPipeline, plain and with a draft; int8 weights by optimum-intel (nncf, one scale an output).

Without a draft model it uses its prompt lookup, up to 3-grams, which is its default. The pipeline does not return
logits: they come from OpenVINO's runtime on the same converted model.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from functools import cached_property
from pathlib import Path

import numpy
import openvino
import openvino_genai
from protocol import Answer, Stopwatch, converted, parse_arguments, serve


class Watching(openvino_genai.StreamerBase):
    def __init__(self) -> None:
        super().__init__()
        self.watch = Stopwatch()
        self.rounds = -1  # the first one ends the prefill

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        self.rounds += 1
        self.watch.add([token] if isinstance(token, int) else list(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def convert(checkpoint: str, precision: str, folder: Path) -> None:
    command = [Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "--model", checkpoint]
    subprocess.run(
        [*command, "--task", "text-generation-with-past", "--weight-format", precision, folder],
        check=True,
        stdout=sys.stderr,
    )


class OpenvinoRunner:
    def __init__(self, arguments: Namespace) -> None:
        def path(checkpoint: str) -> str:
            label = f"openvino-{arguments.precision}"
            return str(
                converted(
                    arguments.work, checkpoint, label, lambda folder: convert(checkpoint, arguments.precision, folder)
                )
            )

        options = {"INFERENCE_NUM_THREADS": arguments.threads}
        self.plain = openvino_genai.LLMPipeline(path(arguments.target), "CPU", **options)
        self.model = Path(path(arguments.target)) / "openvino_model.xml"
        self.options = options
        self.lookup = not arguments.draft
        if self.lookup:
            self.pair = openvino_genai.LLMPipeline(path(arguments.target), "CPU", prompt_lookup=True, **options)
        else:
            draft = openvino_genai.draft_model(path(arguments.draft), "CPU", **options)
            self.pair = openvino_genai.LLMPipeline(path(arguments.target), "CPU", draft_model=draft, **options)
        self.name = f"OpenVINO GenAI {arguments.precision}"
        self.versions = {
            "openvino": openvino.__version__.split("-")[0],
            "openvino-genai": openvino_genai.__version__.split("-")[0],
        }
        self.speculative = True

    def generate(self, prompt: list[int], new_tokens: int, speculative: bool, k: int) -> Answer:
        config = openvino_genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        pipeline = self.plain
        if speculative:
            config.num_assistant_tokens = k
            if self.lookup:
                config.max_ngram_size = 3
            pipeline = self.pair
        streamer = Watching()
        pipeline.generate(openvino.Tensor(numpy.array([prompt])), config, streamer)
        return streamer.watch.answer(new_tokens, streamer.rounds)

    @cached_property
    def request(self) -> openvino.InferRequest:
        return openvino.Core().compile_model(self.model, "CPU", self.options).create_infer_request()

    def logits_of(self, tokens: list[int]) -> numpy.ndarray:
        self.request.reset_state()
        ids = numpy.array([tokens])
        inputs = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "beam_idx": numpy.zeros(1, numpy.int32)}
        found = self.request.infer(inputs | {"position_ids": numpy.arange(len(tokens))[None]})
        return numpy.array(found["logits"][0], numpy.float32)


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    serve(lambda: OpenvinoRunner(arguments))
