from __future__ import annotations

import re

from specexport.calibration.bench.results import Bench, BenchOptions
from specexport.calibration.bench.table import render, summarize
from support.bench_runs import pair, run


def test_the_table_says_what_was_found() -> None:
    pairs = [pair(number, run(8.0 + number), run(4.0), "code") for number in range(12)]
    alone = [pair(12, run(3.0), run(4.0), "alone")]
    routes = (summarize("code", pairs), summarize("alone", alone))
    result = Bench("x.bundle", "fake", "a host", BenchOptions(num_draft_tokens=2), routes, None, (*pairs, *alone))
    text = render(result)
    lines = text.splitlines()
    assert lines[0].startswith("x.bundle on fake, greedy, ")
    assert lines[1] == "a host"
    low, high = routes[0].speedup.low, routes[0].speedup.high
    code, single = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(f"| {name} ")]
        for name in ("code", "alone")
    )
    quantiles = ["2.27x", "3.38x", "4.47x", "4.72x"]
    assert code[0] == ["code", "12", "3.38x", f"{low:.2f} to {high:.2f}", *quantiles, "0 %", "2.90x"]
    assert single[0] == ["alone", "1", "0.75x", "unknown", *["0.75x"] * 4, "100 %", "0.80x"]
    assert code[1][:2] == ["code", "plain"]
    assert single[2] == ["alone", "speculative", *["400.0"] * 4, *["1500.0"] * 2]
    words = " ".join(text.split())
    for figure in ("2.00 tokens", "100 %, 0 %", "draft 25 %, target 50 %, host 25 %"):
        assert figure in words
    assert [int(number) for number in re.findall(r"\d+", lines[-1])] == [13, 0, 0]
