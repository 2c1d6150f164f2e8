"""specexport itself: `--target` is the bundle, k is at most its --max-draft-tokens."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import numpy
import onnxruntime
import specexport
from protocol import Answer, Stopwatch, parse_arguments, serve


class SpecexportRunner:
    def __init__(self, arguments: Namespace) -> None:
        # Without the bundle's policy: every system drafts the same k.
        self.session = specexport.load(arguments.target, threads=arguments.threads, check_digests=False, policy=False)
        self.name = f"specexport {self.session.bundle.manifest.contract.precision}"
        self.versions = {
            "specexport": specexport.__version__,
            "onnxruntime": onnxruntime.__version__,
            "numpy": numpy.__version__,
        }
        self.speculative = True
        self.drafter = "ngram+model" if self.session.bundle.manifest.drafts else "ngram"  # as sessions do by default

    def generate(self, prompt: list[int], new_tokens: int, speculative: bool, k: int) -> Answer:
        self.session.reset()
        watch = Stopwatch()
        options = dict(
            max_new_tokens=new_tokens,
            speculate=speculative,
            drafter=self.drafter,
            num_draft_tokens=k if speculative else None,
            stop_token_ids=(),
        )
        for chunk in self.session.stream(prompt, **options):
            watch.add(list(chunk.tokens))
        return watch.answer(new_tokens, chunk.statistics.rounds - 1)

    def logits_of(self, tokens: list[int]) -> numpy.ndarray:
        """Logits of passes as wide as the widest round."""
        self.session.reset()
        target, widest = self.session.engine.target, self.session.bundle.manifest.contract.widest_step
        rows = [target.step(tokens[start : start + widest], start).copy() for start in range(0, len(tokens), widest)]
        return numpy.concatenate(rows)

    def pass_of(self, context: int, width: int) -> Callable[[], None]:
        target = self.session.engine.target
        for position in range(0, context, 16):
            target.feed([5] * min(16, context - position), position)
        tokens = list(range(1, width + 1))
        return lambda: void(target.step(tokens, context))


def void(_: object) -> None:
    pass


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    serve(lambda: SpecexportRunner(arguments))
