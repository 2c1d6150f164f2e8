"""The command `scripts/model_families.py`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from .page import PAGE, written
from .sweep import RESULTS, read, sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for a family that transformers does not know."""
    parser = argparse.ArgumentParser(
        prog="python scripts/model_families.py",
        description="Try every family of causal language models, and write docs/models.md. Families that were tried "
        "with the installed transformers are not tried again, so an interrupted run can be continued.",
    )
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help="try these again (default: all that were not tried)"
    )
    parser.add_argument("--seconds", type=float, default=300, help="time limit per family (default: %(default)s)")
    parser.add_argument("--page-only", action="store_true", help="only write the page from the known results")
    given = parser.parse_args(arguments)
    unknown = [family for family in given.families if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    if unknown:
        print(f"transformers knows no causal language model {unknown[0]!r}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    disable_progress_bar()
    set_verbosity_error()
    if not given.page_only:
        torch.set_num_threads(1)
        sweep(given.families or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), RESULTS, given.seconds, bool(given.families))
    PAGE.write_text(written(read(RESULTS)), encoding="utf-8")
    return 0
