from __future__ import annotations

import re
from dataclasses import replace

from specexport.calibration.bench.interleaved import bench
from specexport.calibration.bench.results import Bench, BenchOptions
from specexport.calibration.bench.table import COLUMNS, render, summarize
from specexport.runtime.session import Session
from support.bench_runs import pair, requests, run


def test_the_table_fits(session: Session) -> None:
    result = bench(session, requests(6), BenchOptions(max_new_tokens=9))
    assert [line.split()[:2] for line in render(result).splitlines()[4:7]] == [["b", "3"], ["a", "3"], ["all", "6"]]
    long = [replace(route, route=name) for route, name in zip(result.routes, ("x" * 200, "会話" * 30), strict=True)]
    wild = [
        pair(0, run(1e6, emitted=1), run(1e-3, drafted_by_position=(3,) * 40, accepted_by_position=(1,) * 40), "wild"),
        pair(1, run(1e3, emitted=1), run(1e3), "wild"),
    ]
    options = BenchOptions(
        num_draft_tokens=16, drafter="suffix+model", temperature=0.123456, seed=2**62, max_new_tokens=10**6
    )
    for shown in (
        result,
        replace(result, routes=(*long, summarize("wild", wild)), options=options, bundle="b" * 60, host="GPU " * 40),
    ):
        from rich.cells import cell_len

        lines = render(shown).splitlines()
        assert max(cell_len(line) for line in lines) <= COLUMNS == 110


def test_the_table_says_what_was_found() -> None:
    pairs = [pair(number, run(8.0 + number), run(4.0), "code") for number in range(12)]
    alone = [pair(12, run(3.0), run(4.0), "alone")]
    routes = (summarize("code", pairs, lambda *_: 3.3), summarize("alone", alone))
    result = Bench("x.bundle", "fake", "a host", BenchOptions(num_draft_tokens=2), routes, None, (*pairs, *alone))
    text = render(result)
    lines = text.splitlines()
    assert lines[0].startswith("x.bundle on fake, greedy, ")
    assert lines[1] == "a host"
    low, high = routes[0].speedup.low, routes[0].speedup.high
    code, single = ([line.split() for line in lines if line.startswith(name)] for name in ("code", "alone"))
    quantiles = ["2.27", "3.38", "4.47", "4.72"]
    assert code[0] == ["code", "12", "3.38x", f"{low:.2f}", "to", f"{high:.2f}", *quantiles, "0%", "2.90x", "3.30x"]
    assert single[0] == ["alone", "1", "0.75x", "unknown", "0.75", "0.75", "0.75", "0.75", "100%", "0.80x", "-"]
    assert code[1][:2] == ["code", "plain"]
    assert single[2] == ["alone", "speculative", *["400.00"] * 4, *["1500.00"] * 4]
    words = " ".join(text.split())
    for figure in ("2.00 tokens", "100%, 0%", "draft 25%, target 50%, host 25%"):
        assert figure in words
    assert [int(number) for number in re.findall(r"\d+", lines[-1])] == [13, 0, 0]
