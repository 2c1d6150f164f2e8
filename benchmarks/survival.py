"""How well the acceptance of draft tokens is predicted on the demo pair.

    python benchmarks/survival.py demo.bundle [--limit N]

Records N prompts of each route (code, prose, random), greedy, with the largest number of draft tokens, and fits the
signals like `specexport calibrate`. Every figure is for requests that weights and curves were not fitted on (five folds
of whole requests).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specexport import load
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import judged_tokens, record
from specexport.calibration.survival.fit import fit_survival
from specexport.runtime.sampling.parameters import SamplingParameters

ROUTES = ("code", "prose", "random")
PROMPTS = Path(__file__).parent.parent / "examples/prompts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--limit", type=int, default=120, help="prompts per route")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    session = load(arguments.bundle, policy=False)
    records, features = [], []
    for route in ROUTES:
        lines = (PROMPTS / f"{route}.jsonl").read_text(encoding="utf-8").splitlines()[: arguments.limit]
        for number, line in enumerate(lines):
            tokens = tuple(session.encode(json.loads(line)["prompt"]))
            found, numbers = record(
                session,
                Request(number, route, tokens, arguments.max_new_tokens),
                SamplingParameters(),
                plain_first=True,
            )
            records.append(found)
            features.append(numbers)
    survival, qualities = fit_survival(judged_tokens(records, features), "")
    print("signal | expected calibration error | of the product | AUC | tokens\n---|---|---|---|---")
    for one in qualities:
        tokens = sum(count for _, _, count in one.reliability)
        chosen = ", chosen" if one.signal == survival.signal else ""
        print(f"{one.signal}{chosen} | {one.error:.1%} | {one.survival_error:.1%} | {one.auc:.3f} | {tokens}")
    print(f"{len(records)} requests")


if __name__ == "__main__":
    main()
