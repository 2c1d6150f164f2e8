"""The families' part of docs/models.md, from the table of results."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from pathlib import Path

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .attempt import Outcome
from .sweep import Results

PAGE = Path(__file__).resolve().parents[2] / "docs/models.md"
BEGIN = "<!-- from here on written by scripts/model_families.py -->"
WIDTH = 120
WRONG = "The exporter makes a graph of these that is not the model. A build ends with this error:"
UNMADE = "The script made no tiny model, or did not end (errors: scripts/families/results.json):"
MARK = "decoder"
DECODERS = (
    f'"({MARK})" marks encoder-decoders of which only the decoder was tried, which transformers can load by itself. '
    "Whole checkpoints of these families, as they are published, are refused."
)


def written(results: Results) -> str:
    """The whole page: the handwritten part, followed by the generated one."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[0] + BEGIN + "\n\n" + families(results)


def families(results: Results) -> str:
    """Markdown: how many families are proved and refused, and which; families without a result are named too."""
    by_status: dict[str, dict[str, Outcome]] = {status: {} for status in ("proved", "refused", "failed", "unmade")}
    for family, outcome in sorted(results.families.items()):
        by_status[outcome.status][family] = outcome
    proved, refused, failed, unmade = by_status.values()
    untried = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(results.families))
    rest = f"; and {len(untried)} were not tried yet" if untried else ""
    parts = [
        "## Families",
        "`python scripts/model_families.py` makes a tiny random model of each family that `AutoModelForCausalLM` of "
        f"transformers {results.transformers} knows, exports it for ONNX Runtime with specexport-kernels and "
        "proves the graph against transformers: every kind of pass, rejected drafts, rows beyond any window. Of "
        f"{len(results.families) + len(untried)} model types {len(proved)} are proved, {len(refused)} are refused and "
        f"{len(failed)} failed their proof; for {len(unmade)} the script could not make a tiny model, or its attempt "
        f"did not end{rest}. A tiny model has one layer "
        "of each type that its family mixes. A checkpoint of a proved family may still be refused for an option that "
        "the tiny model does not use.",
        "### Proved",
        DECODERS,
        ", ".join(f"{family} ({MARK})" if has_encoder(family) else family for family in proved) + ".",
        _exact([family for family, outcome in proved.items() if not outcome.exact]),
        "### Refused",
        *_by_cause(refused),
        *(("### Failed their proof", WRONG, *_by_cause(failed)) if failed else ()),
        *(("### No result", f"{UNMADE} {', '.join(unmade)}.") if unmade else ()),
        *(("### Not tried yet", ", ".join(untried) + ".") if untried else ()),
    ]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _exact(others: list[str]) -> str:
    """others: those proved families in whose tiny models a row's bits depend on the width of its pass."""
    which = f"In all of them except {', '.join(others)}" if others else "In all of them"
    return (
        f"{which}, a row in fp32 has the same bits in passes of any width and after prompt chunks of any size, so "
        "verification gives exactly the tokens of plain decoding."
    )


def has_encoder(family: str) -> bool:
    """Whether the family's whole models are encoder-decoders: `AutoModelForCausalLM` loads their decoders alone."""
    return family in CONFIG_MAPPING and bool(CONFIG_MAPPING[family]().is_encoder_decoder)


def cause(reason: str) -> str:
    """A refusal's message without the name of the model's class."""
    return re.sub(r"^\w+ cannot be exported: |^[A-Z]\w+(?:: | )", "", reason)


def _by_cause(outcomes: dict[str, Outcome]) -> list[str]:
    """A list entry for each cause, with all families that are refused for it; the most frequent causes first."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for family, outcome in outcomes.items():
        found[cause(re.sub(rf"\b{re.escape(family)}\b", "it", outcome.reason))].append(family)
    ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[1]))
    return ["\n".join(_wrapped(f"- {', '.join(names)}: {_plain(why)}", "  ") for why, names in ordered)]


def _plain(text: str) -> str:
    """`text` with Markdown's markup characters escaped."""
    return re.sub(r"([*_<>|`\[\]])", r"\\\1", text)


def _wrapped(text: str, indent: str = "") -> str:
    if "\n" in text:
        return text
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
