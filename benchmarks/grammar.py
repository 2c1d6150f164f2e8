"""What a grammar costs per round, and what its forced tokens gain: constrained against free decoding, interleaved.

    python benchmarks/grammar.py smol.bundle

Needs a quiet machine. Free and constrained requests of the same length alternate; figures are medians over the repeats,
and ratios those of the pairs. Rounds are plain in the first table, so that each is one pass of the target.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from specexport import Grammar, Session, load

PROMPT = "A list of orders as JSON:\n"
# Grammars of texts that can continue without limit, with cheap and with expensive masks.
GOING_ON = {
    "strings": {"type": "array", "items": {"type": "string"}},
    "bounded strings": {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 200}},
    "objects": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "total": {"type": "number"}},
            "required": ["name", "total"],
            "additionalProperties": False,
        },
    },
}
FORM = {
    "type": "object",
    "properties": {
        "orderNumber": {"type": "integer", "minimum": 1, "maximum": 99999},
        "customerName": {"type": "string", "maxLength": 20},
        "shippingAddress": {"type": "string", "maxLength": 30},
        "numberOfItems": {"type": "integer", "minimum": 1, "maximum": 99},
        "isExpressDelivery": {"type": "boolean"},
        "paymentMethod": {"enum": ["card", "invoice", "cash"]},
    },
    "additionalProperties": False,
}
FORM["required"] = list(FORM["properties"])  # type: ignore[call-overload]
WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "top-p 0.95": {"temperature": 1.0, "top_p": 0.95, "seed": 1}}


def milliseconds_a_round(session: Session, length: int, **options: Any) -> tuple[float, float]:
    """(whole time, the host's part), in milliseconds per round."""
    session.reset()
    found = session.generate(PROMPT, max_new_tokens=length, stop_token_ids=(), speculate=False, **options).statistics
    return found.decode_seconds / found.rounds * 1e3, found.host_seconds / found.rounds * 1e3


def rounds(session: Session, length: int, repeats: int) -> None:
    print("| schema | sampling | free, ms a round | constrained | ratio | host's part: free | constrained |")
    print("|---|---|---|---|---|---|---|")
    for name, schema in GOING_ON.items():
        grammar = Grammar.json_schema(schema)
        for way, options in WAYS.items():
            milliseconds_a_round(session, length, grammar=grammar, **options)  # lexers and caches warm
            pairs = []
            for repeat in range(repeats):
                found = {}
                for bounded in (False, True) if repeat % 2 else (True, False):  # so that neither always comes first
                    found[bounded] = milliseconds_a_round(
                        session, length, grammar=grammar if bounded else None, **options
                    )
                pairs.append((*found[False], *found[True]))
            free, free_host, bound, bound_host = (median(column) for column in zip(*pairs, strict=True))
            ratio = median(pair[2] / pair[0] for pair in pairs)
            print(
                f"| {name} | {way} | {free:.2f} | {bound:.2f} | {ratio:.3f} | {free_host:.2f} | {bound_host:.2f} |",
                flush=True,
            )


def form(session: Session, repeats: int) -> None:
    """A schema with fixed keys: tokens per second, free and constrained, plain and with the default drafter."""
    grammar = Grammar.json_schema(FORM)
    ways: dict[str, dict[str, Any]] = {
        "free, plain": {"speculate": False},
        "free, drafted": {},
        "constrained, plain": {"grammar": grammar, "speculate": False},
        "constrained, drafted": {"grammar": grammar},
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    told = {}
    for repeat in range(repeats + 1):
        for name, options in ways.items():
            session.reset()
            stop = {} if "grammar" in options else {"stop_token_ids": ()}
            found = session.generate(PROMPT, max_new_tokens=80, **stop, **options)
            if repeat:  # the first one warms up
                rates[name].append(found.statistics.tokens_per_second)
            told[name] = found.statistics
    print("\n| | tokens/s | tokens a round | tokens | drafted | forced | accepted |\n|---|---|---|---|---|---|---|")
    for name, row in told.items():
        print(
            f"| {name} | {median(rates[name]):.1f} | {row.mean_acceptance_length:.2f} | {row.emitted} | {row.drafted} "
            f"| {row.forced} | {row.accepted} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--length", type=int, default=48, help="tokens per request in the first table")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    session = load(given.bundle, threads=given.threads)
    session.prepare_grammar()
    print(f"{session.bundle.manifest.target.vocab_size} tokens of vocabulary, {given.repeats} repeats\n")
    rounds(session, given.length, given.repeats)
    form(session, given.repeats)


if __name__ == "__main__":
    main()
