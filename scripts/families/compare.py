"""The command `scripts/family_losslessness.py`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from .losslessness import FAMILIES, compare


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 if an output is not the target's, 2 for a family that transformers does not know."""
    parser = argparse.ArgumentParser(
        prog="python scripts/family_losslessness.py",
        description="Compare speculative with plain greedy output over random requests, on a tiny random pair of each "
        "family: drafts that are accepted and rejected, lookups, prompts that go on behind earlier ones.",
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"default: {', '.join(FAMILIES)}")
    parser.add_argument("--requests", type=int, default=200, help="requests per family (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    unknown = [family for family in given.families if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    if unknown:
        print(f"transformers knows no causal language model {unknown[0]!r}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    disable_progress_bar()
    set_verbosity_error()
    torch.set_num_threads(1)
    different = 0
    for family in given.families or FAMILIES:
        found = compare(family, given.requests, given.seed)
        print(f"{family:18} {found}", flush=True)
        different += found.different
    return 1 if different else 0
