"""What `--precision auto` measured when the bundle was built, and chose: `precision.json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..strict import parse, read_json
from .models import Format
from .opening import Bundle

PRECISION = "precision.json"


@dataclass(frozen=True)
class PrecisionCandidate:
    """A combination of precisions and its results on the prompts: tokens per second, plain and with drafts, and tokens
    per round.

    weight_bytes: of both models. perplexity_loss and divergence (nats): of the target against its unquantized self, see
    `Fidelity`. low, high: the tenth and the ninetieth percentile of the prompts' speculative tokens per second. slower:
    its time per token with drafts over that of the chosen combination, prompt by prompt; slower_low and slower_high:
    the 95 % interval.
    """

    target: Format
    draft: Format | None
    weight_bytes: int
    perplexity_loss: float
    divergence: float
    plain: float
    speculative: float
    low: float
    high: float
    acceptance_length: float
    slower: float
    slower_low: float
    slower_high: float


@dataclass(frozen=True)
class PrecisionTable:
    """What `--precision auto` measured on `host`, and chose. max_divergence: the limit for the target, in nats.

    left_out: formats of a model that moved too far, or whose graphs failed their proof, and how.
    """

    host: str
    max_divergence: float
    prompts: int
    new_tokens: int
    target: Format
    draft: Format | None
    candidates: tuple[PrecisionCandidate, ...]
    left_out: tuple[str, ...]


def read_precision(bundle: Bundle) -> PrecisionTable | None:
    """None for a bundle whose precision was named. Raises `BundleError` for a damaged file."""
    path = bundle.root / PRECISION
    remedy = "build the bundle again"
    return parse(PrecisionTable, read_json(path, remedy), str(path)) if path.exists() else None


def table_lines(table: PrecisionTable) -> Iterator[str]:
    """A `PrecisionTable` as text, with the chosen combination marked."""
    allowed = table.max_divergence
    yield (
        f"precision  measured on {table.host}: {table.new_tokens} tokens behind each of "
        f"{table.prompts} calibration texts, "
        f"the target to move by {allowed:g} nats at most"
    )
    heads = f"{'target + draft':<15} {'MB':>8} {'nats':>7} {'plain':>7} {'drafts':>7}"
    yield f"           {heads} tokens/s (p10 to p90), tokens a round"
    for row in table.candidates:
        mark = "  <- taken" if _is_taken(row, table) else "  close" if _is_close(row, table) else ""
        mark = "  moves too far" if row.divergence > allowed else mark
        yield (
            f"           {_name(row):<15} {row.weight_bytes / 1e6:>8.1f} {row.divergence:>7.4f} "
            f"{row.plain:>7.1f} "
            f"{row.speculative:>7.1f} ({row.low:.1f} to {row.high:.1f}), {row.acceptance_length:.2f}{mark}"
        )
    taken = next(row for row in table.candidates if _is_taken(row, table))
    if close := [row for row in table.candidates if _is_close(row, table)]:
        faster = max(close, key=lambda row: row.speculative)
        yield (
            f"           a close call: {_name(faster)} takes {faster.slower:.2f} times as long "
            f"({faster.slower_low:.2f} to {faster.slower_high:.2f}); --precision names one"
        )
    plain = max((row for row in table.candidates if row.divergence <= allowed), key=lambda row: row.plain)
    if plain.plain > taken.speculative:
        yield (
            f"           faster on these texts without drafts: the target in {_called(plain.target)}, "
            f"{plain.plain:.1f} tokens/s; "
            "specexport calibrate decides by route"
        )
    yield from (f"           left out: {reason}" for reason in table.left_out)


def _is_taken(row: PrecisionCandidate, table: PrecisionTable) -> bool:
    return (row.target, row.draft) == (table.target, table.draft)


def _is_close(row: PrecisionCandidate, table: PrecisionTable) -> bool:
    """Whether another combination may be as fast as the chosen one, within the uncertainty.

    A single prompt cannot tell.
    """
    fits = row.divergence <= table.max_divergence and table.prompts > 1
    return fits and not _is_taken(row, table) and row.slower_low <= 1


def _name(row: PrecisionCandidate) -> str:
    return " + ".join(_called(form) for form in (row.target, row.draft) if form)


def _called(form: Format) -> str:
    """As on the command line: only CPUs are measured, where everything that is not quantized is fp32."""
    return "fp32" if form == "float" else form
