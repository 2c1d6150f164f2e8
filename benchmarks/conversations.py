"""Two alternating chats on one session, with and without host memory for the cache rows of the waiting one.

    python benchmarks/conversations.py BUNDLE [--turns 10] [--new-tokens 32] [--mib 512]

Prints how many prompt tokens each turn prefilled, the time to its first token, and the time to compute a cache row
relative to copying it to the host and back. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import specexport
from hardware import describe_hardware
from specexport.runtime.session import Session

OPENINGS = ("def parse(line: str):\n", "The river had been rising all week, and ")
SAYS = ("    # and now the next field\n", " Then they asked what would happen next, and ")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--mib", type=int, default=512)
    return parser.parse_args()


def talk(session: Session, turns: int, new_tokens: int) -> tuple[list[tuple[int, ...]], list[int], list[float]]:
    """Two alternating chats: (all tokens; how many were prefilled, and the seconds to the first token, for every turn
    except the first ones).
    """
    talks = [session.encode(opening) for opening in OPENINGS]
    heard, prefilled, seconds = [], [], []
    for turn in range(turns):
        for which, tokens in enumerate(talks):
            if turn:
                tokens += session.encode(SAYS[which])[-12:]
            given = session.generate(tokens, max_new_tokens=new_tokens, stop_token_ids=())
            tokens += given.tokens
            heard.append(given.tokens)
            if turn:
                prefilled.append(given.statistics.prompt_tokens - given.statistics.reused_tokens)
                seconds.append(given.statistics.first_token_seconds)
    return heard, prefilled, seconds


def copied_over(session: Session, rows: int) -> float:
    """The time to compute a row in a prompt chunk, divided by the time to copy it out and back."""
    target, chunk = session.engine.target, session.bundle.manifest.contract.prompt_chunk
    tokens = (session.encode(OPENINGS[1]) * rows)[:rows]
    start = perf_counter()
    for position in range(0, rows, chunk):
        target.feed(tokens[position : position + chunk], position)
    computed = perf_counter() - start
    start = perf_counter()
    target.write_rows(target.read_rows(rows), 0, rows)
    return computed / (perf_counter() - start)


def main() -> None:
    arguments = parse()
    print(describe_hardware())
    results = {}
    for mib in (0, arguments.mib):
        with specexport.load(arguments.bundle, prompt_cache_bytes=mib << 20) as session:
            results[mib] = _, prefilled, seconds = talk(session, arguments.turns, arguments.new_tokens)
            print(
                f"{mib:4} MiB: {median(prefilled):4.0f} prompt tokens prefilled a turn (at most {max(prefilled)}), "
                f"{median(seconds) * 1e3:.1f} ms to the first token (at most {max(seconds) * 1e3:.1f})"
            )
            if mib:
                rows = session.capacity // 2
                print(f"computing a row over copying it out and back, {rows} rows: {copied_over(session, rows):.0f}")
    same = results[0][0] == results[arguments.mib][0]
    print(f"the same tokens with and without: {'yes' if same else 'NO'}")


if __name__ == "__main__":
    main()
