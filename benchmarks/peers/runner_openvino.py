"""OpenVINO GenAI: LLMPipeline, plain and with a draft; int8 weights by optimum-intel (nncf, one scale an output)."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
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
        self.pair = None
        if arguments.draft:
            draft = openvino_genai.draft_model(path(arguments.draft), "CPU", **options)
            self.pair = openvino_genai.LLMPipeline(path(arguments.target), "CPU", draft_model=draft, **options)
        self.name = f"OpenVINO GenAI {arguments.precision}"
        self.versions = {
            "openvino": openvino.__version__.split("-")[0],
            "openvino-genai": openvino_genai.__version__.split("-")[0],
        }
        self.speculative = self.pair is not None

    def generate(self, prompt: list[int], new_tokens: int, speculative: bool, k: int) -> Answer:
        config = openvino_genai.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        pipeline = self.plain
        if speculative and self.pair is not None:
            config.num_assistant_tokens = k
            pipeline = self.pair
        streamer = Watching()
        pipeline.generate(openvino.Tensor(numpy.array([prompt])), config, streamer)
        return streamer.watch.answer(new_tokens, streamer.rounds)


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    serve(lambda: OpenvinoRunner(arguments))
