"""Prompts and options of the tests of `exporter.tuning`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from specexport.calibration.measuring.prompts import Progress, Request, silent
from specexport.exporter.tuning.options import TuneOptions

from support.tiny import VOCAB

TOKENS = 32
OPTIONS = TuneOptions(max_new_tokens=TOKENS, answers=1, epochs=30, general=0.2)


@contextmanager
def quiet(label: str) -> Iterator[Progress]:
    yield silent


def requests(count: int = 20, route: str = "code") -> list[Request]:
    rng = np.random.default_rng(len(route))
    return [Request(line, route, tuple(rng.integers(2, VOCAB, 6).tolist()), TOKENS) for line in range(count)]
