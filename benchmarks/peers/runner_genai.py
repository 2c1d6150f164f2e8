"""onnxruntime-genai: models made from the checkpoints by its own builder.

int8 and int4 are MatMulNBits, in blocks of 32, at accuracy level 4.
For speculation it has models of type `speculative`, whose configuration is the target's plus the draft's decoder. It
has no prompt lookup: without a draft it only decodes plainly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import onnxruntime
import onnxruntime_genai
from protocol import Answer, Stopwatch, converted, parse_arguments, serve


def build(checkpoint: str, precision: str, folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        checkpoint,
        "-o",
        folder,
        "-p",
        precision,
    ]
    subprocess.run([*command, "-e", "cpu", "-c", folder / "cache"], check=True, stdout=sys.stderr)


def load(work: Path, models: dict[str, Path], threads: int) -> onnxruntime_genai.Model:
    """Load a model. models: folders of `decoder`, and for speculation of `draft`.

    A configuration may only name files in its own folder, so they are linked there.
    """
    with TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        config = json.loads((models["decoder"] / "genai_config.json").read_text(encoding="utf-8"))
        for role, source in models.items():
            part = json.loads((source / "genai_config.json").read_text(encoding="utf-8"))["model"]["decoder"]
            part["session_options"]["intra_op_num_threads"] = threads
            part["filename"] = f"{role}/{part['filename']}"
            config["model"][role] = part
            (folder / role).mkdir()
            for file in source.glob("model.onnx*"):
                os.link(file, folder / role / file.name)
        if "draft" in models:
            config["model"]["type"] = "speculative"
        (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
        return onnxruntime_genai.Model(name)


class GenaiRunner:
    def __init__(self, arguments: Namespace) -> None:
        precision = arguments.precision

        def path(checkpoint: str) -> Path:
            return converted(
                arguments.work, checkpoint, f"genai-{precision}", lambda folder: build(checkpoint, precision, folder)
            )

        target = path(arguments.target)
        self.plain = load(arguments.work, {"decoder": target}, arguments.threads)
        self.pair = None
        if arguments.draft:
            self.pair = load(arguments.work, {"decoder": target, "draft": path(arguments.draft)}, arguments.threads)
        self.capacity = arguments.capacity
        self.name = f"onnxruntime-genai {precision}"
        self.versions = {"onnxruntime-genai": onnxruntime_genai.__version__, "onnxruntime": onnxruntime.__version__}
        self.speculative = self.pair is not None

    def generator(self, length: int, k: int) -> onnxruntime_genai.Generator:
        """A generator of exactly `length` tokens, prompt included: the end token is forbidden before."""
        model = self.pair if k else self.plain
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=self.capacity, min_length=length, do_sample=False)
        if k:
            parameters.set_speculative_options(max_draft_tokens=k)
        return onnxruntime_genai.Generator(model, parameters)

    def generate(self, prompt: list[int], new_tokens: int, speculative: bool, k: int) -> Answer:
        generator = self.generator(len(prompt) + new_tokens, k if speculative else 0)
        watch = Stopwatch()
        generator.append_tokens(numpy.array([prompt], dtype=numpy.int32))
        rounds = -1  # the first one ends the prefill
        while len(watch.tokens) < new_tokens:
            generator.generate_next_token()
            tokens = [int(generator.get_next_tokens()[0])]
            # A round's tokens are computed together and returned one by one.
            while speculative and generator.get_speculative_stats()["tokens_buffered"]:
                generator.generate_next_token()
                tokens.append(int(generator.get_next_tokens()[0]))
            watch.add(tokens)
            rounds += 1
        return watch.answer(new_tokens, rounds)

    def logits_of(self, tokens: list[int]) -> numpy.ndarray:
        generator = self.generator(len(tokens), 0)
        generator.append_tokens(numpy.array([tokens], dtype=numpy.int32))
        return numpy.array(generator.get_output("logits")[0], numpy.float32)

    def pass_of(self, context: int, width: int) -> Callable[[], None]:
        generator = self.generator(context, 0)
        generator.append_tokens(numpy.full((1, context), 5, dtype=numpy.int32))
        tokens = numpy.arange(1, width + 1, dtype=numpy.int32)[None]

        def run() -> None:
            generator.append_tokens(tokens)
            generator.rewind_to(context)

        return run


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    serve(lambda: GenaiRunner(arguments))
