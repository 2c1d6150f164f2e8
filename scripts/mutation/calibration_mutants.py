"""Faults in measurements and in what is decided by them: statistics, paired runs, records, verdicts, costs."""

from __future__ import annotations

from .mutant import Mutant

OF, TESTS = "calibration/", "tests/calibration/"
INTERVALS, IN_INTERVALS = f"{OF}statistics/intervals.py", (f"{TESTS}statistics/test_intervals.py",)
SIZES, IN_SIZES = f"{OF}statistics/sample_size.py", (f"{TESTS}statistics/test_sample_size.py",)
INTERLEAVED, IN_BENCH = f"{OF}bench/interleaved.py", (f"{TESTS}bench/test_interleaved.py",)
PAIRED = f"{OF}bench/paired_run.py"
SUMMARY, IN_SUMMARY = f"{OF}bench/summarize.py", (f"{TESTS}bench/test_summarize.py",)
RECORD, IN_RECORD = f"{OF}measuring/record.py", (f"{TESTS}measuring/test_record.py",)
JOURNAL = f"{OF}measuring/journal.py"
IN_ADAPTIVE = (f"{TESTS}measuring/test_adaptive_replay.py",)
IN_REPLAY, IN_JOURNAL = (f"{TESTS}measuring/test_trace_replay.py",), (f"{TESTS}measuring/test_journal.py",)
CALIBRATE, IN_CALIBRATE = f"{OF}calibrate.py", (f"{TESTS}test_calibrate.py",)
VERDICT, IN_VERDICT = f"{OF}verdicts/verdict.py", (f"{TESTS}verdicts/test_verdict.py",)
CURVES, FIT, IN_FIT = f"{OF}survival/curves.py", f"{OF}survival/fit.py", (f"{TESTS}survival/test_fit.py",)
IN_PRECISIONS = ("tests/exporter/test_precision_search.py",)
IN_GPTQ = ("tests/exporter/weights/test_gptq.py",)
IN_SMOOTHING = ("tests/exporter/weights/test_smoothing.py",)
MODEL, IN_MODEL = "runtime/policy/cost_model.py", ("tests/runtime/policy/test_cost_model.py",)
METER, IN_METER = "runtime/costs/meter.py", ("tests/runtime/costs/test_meter.py",)
HOST, IN_DECISIONS = "runtime/policy/host_identity.py", ("tests/runtime/policy/test_decisions.py",)

CALIBRATION = (
    Mutant(
        "a 95 % interval has two tails of 5 %", INTERVALS, "[tail, 1 - tail]", "[2 * tail, 1 - 2 * tail]", IN_INTERVALS
    ),
    Mutant(
        "a ratio of sums is resampled as a mean of ratios",
        INTERVALS,
        "above[drawn].sum(axis=1) / below[drawn].sum(axis=1)",
        "(above[drawn] / below[drawn]).mean(axis=1)",
        IN_INTERVALS,
    ),
    Mutant(
        "an interval's normal quantile is one-sided",
        INTERVALS,
        "NORMAL.inv_cdf(0.975)",
        "NORMAL.inv_cdf(0.95)",
        IN_INTERVALS,
    ),
    Mutant(
        "few requests' numerators and denominators are not paired",
        INTERVALS,
        "above / above.sum() - below / below.sum()",
        "above / above.sum() - 1 / count",
        IN_INTERVALS,
    ),
    Mutant(
        "a difference's variance is that of the sample",
        INTERVALS,
        "np.sqrt(count / (count - 1) * np.square(above - value * below).sum())",
        "np.sqrt(np.square(above - value * below).sum())",
        IN_INTERVALS,
    ),
    Mutant(
        "p99 is p95",
        INTERVALS,
        "[10, 50, 90, 99]",
        "[10, 50, 90, 95]",
        (f"{TESTS}statistics/test_intervals.py", *IN_SUMMARY),
    ),
    Mutant(
        "a quantile's bounds have all of their doubt on each side",
        SIZES,
        "(1 - confidence) / 2",
        "1 - confidence",
        IN_SIZES,
    ),
    Mutant(
        "the bound of a quantile is one request off",
        SIZES,
        "_binomial(requests, rank - 1, share)",
        "_binomial(requests, rank, share)",
        IN_SIZES,
    ),
    Mutant(
        "plain goes first in every repeat",
        INTERLEAVED,
        "(places[request.route] + repeat) % 2 == 0",
        "places[request.route] % 2 == 0",
        IN_BENCH,
    ),
    Mutant(
        "a benchmark has no warm-up",
        INTERLEAVED,
        "run_both_ways(session, requests[0], options, True)",
        "None",
        IN_BENCH,
    ),
    Mutant("a benchmark goes on with other threads", INTERLEAVED, "session.threads", "0", IN_BENCH, "journal_header"),
    Mutant(
        "a benchmark goes on from another host",
        INTERLEAVED,
        "describe_host(engine.name, engine.device)",
        '""',
        IN_BENCH,
        "journal_header",
    ),
    Mutant(
        "a benchmark's seed is not passed on",
        "calibration/bench/interleaved.py",
        "options.seed",
        "0",
        IN_BENCH,
        "_decode",
    ),
    Mutant(
        "the second of a pair finds the prompt in the cache",
        "calibration/bench/interleaved.py",
        "session.reset()",
        "None",
        IN_BENCH,
        "_decode",
    ),
    Mutant(
        "plain time is not scaled to the tokens of the other run",
        f"{OF}bench/results.py",
        "self.plain.latency * self.speculative.emitted",
        "self.plain.decode_seconds",
        (*IN_SUMMARY, f"{TESTS}bench/test_results.py"),
    ),
    Mutant(
        "one route with equal outputs passes a benchmark",
        f"{OF}bench/results.py",
        "not any(route.different for route in self.routes)",
        "not all(route.different for route in self.routes)",
        (f"{TESTS}bench/test_paired_run.py", *IN_SUMMARY),
    ),
    Mutant("repeats of a request add up", "calibration/bench/table.py", "total / len(group)", "total", IN_SUMMARY),
    Mutant(
        "a request's speedup is upside down",
        "calibration/bench/table.py",
        "[one / other for one, other in zip(plain, speculative, strict=True)]",
        "[other / one for one, other in zip(plain, speculative, strict=True)]",
        IN_SUMMARY,
    ),
    Mutant(
        "the table has seconds under ms",
        f"{OF}bench/table.py",
        'f"{seconds * 1e3:.2f}" if seconds < 100 else f"{seconds * 1e3:.1e}"',
        'f"{seconds:.2f}" if seconds < 100 else f"{seconds * 1e3:.1e}"',
        (f"{TESTS}bench/test_table.py",),
    ),
    Mutant(
        "a plain run is predicted to take a round per round",
        f"{OF}bench/predict.py",
        "run.emitted * at.plain",
        "run.rounds * at.plain",
        (f"{TESTS}bench/test_predict.py",),
    ),
    Mutant("two runs write one journal", JOURNAL, "lock(file)", "None", IN_JOURNAL),
    Mutant("a journal goes on after half a line", JOURNAL, "len(content) - len(torn)", "len(content)", IN_JOURNAL),
    Mutant(
        "a prompt's answer may outgrow the capacity",
        f"{OF}measuring/prompts.py",
        "min(wanted, room)",
        "wanted",
        (f"{TESTS}measuring/test_prompts.py",),
    ),
    Mutant(
        "the limit of each route counts all requests",
        f"{OF}measuring/prompts.py",
        "taken[request.route] < limit",
        "len(chosen) < limit",
        (f"{TESTS}measuring/test_prompts.py",),
    ),
    Mutant(
        "a rejected token is unknown to replays",
        f"{OF}measuring/recorder.py",
        "min(round.num_accepted + 1, round.num_drafted)",
        "round.num_accepted",
        IN_REPLAY,
        "agreement",
    ),
    Mutant(
        "rejected tokens are not learnt from",
        RECORD,
        "min(round.num_accepted + 1, round.num_drafted, len(round.probability))",
        "min(round.num_accepted, len(round.probability))",
        IN_RECORD,
    ),
    Mutant(
        "recorded plain runs always go first",
        RECORD,
        "1 if plain_first else -1",
        "1",
        IN_RECORD,
    ),
    Mutant("plain goes first in all of a calibration", CALIBRATE, "number % 2 == 0", "True", IN_CALIBRATE),
    Mutant(
        "a record's speedup is upside down",
        RECORD,
        "self.plain.latency / self.speculative.latency",
        "self.speculative.latency / self.plain.latency",
        IN_RECORD,
    ),
    Mutant(
        "tokens per second are called seconds per token",
        RECORD,
        "self.decode / self.emitted",
        "self.emitted / self.decode",
        IN_RECORD,
    ),
    Mutant(
        "a draft that was looked up costs the model's passes",
        f"{OF}measuring/trace_replay.py",
        "costs.looked_up(round.num_drafted)",
        "costs.rounds[round.num_drafted]",
        IN_VERDICT,
    ),
    Mutant("routes do not take turns", CALIBRATE, "sorted(keyed, key=lambda item: item[0])", "keyed", IN_CALIBRATE),
    Mutant(
        "a bundle that cannot be written is found after the run",
        CALIBRATE,
        "check_writable(session.bundle)",
        "None",
        IN_CALIBRATE,
        "calibrate",
    ),
    Mutant(
        "a calibration goes on from another host",
        CALIBRATE,
        "describe_host(session.engine.name, session.engine.device)",
        '""',
        IN_CALIBRATE,
        "_header",
    ),
    Mutant("a calibration goes on with another temperature", CALIBRATE, "asdict(options.sampling)", "{}", IN_CALIBRATE),
    Mutant(
        "a confidence that is not read any more stays",
        CALIBRATE,
        "older.unlink()",
        "None",
        IN_CALIBRATE,
    ),
    Mutant(
        "a floor that is not a number is taken",
        f"{OF}options.py",
        "if not 0 <= self.floor <= 2:",
        "if self.floor < 0 or self.floor > 2:",
        IN_CALIBRATE,
    ),
    Mutant(
        "costs of another draft are scaled the wrong way",
        "runtime/policy/cost_model.py",
        "theirs.rounds[0].median / ours.rounds[0].median",
        "ours.rounds[0].median / theirs.rounds[0].median",
        (f"{TESTS}test_calibrate_several.py",),
    ),
    Mutant(
        "the drafters that were asked for are all drafters",
        f"{OF}choices.py",
        'possible if "all" in asked else tuple(dict.fromkeys(asked)) or possible',
        "possible",
        (f"{TESTS}test_choices.py",),
    ),
    Mutant(
        "a mean above 1 is a verdict",
        VERDICT,
        "candidate.speedup.low > 1 and candidate.p10 >= floor",
        "candidate.speedup.value > 1 and candidate.p10 >= floor",
        IN_VERDICT,
    ),
    Mutant(
        "two requests are a verdict",
        VERDICT,
        "len(replayed.speedups) >= MIN_REQUESTS",
        "len(replayed.speedups) > 1",
        IN_VERDICT,
    ),
    Mutant(
        "requests are judged by their own chances",
        VERDICT,
        "conditional_chances(halves[1 - half] or traces, drafter, most)",
        "conditional_chances(halves[half] or traces, drafter, most)",
        IN_ADAPTIVE,
    ),
    Mutant(
        "noise changes the drafter",
        VERDICT,
        "speedup(other) > BETTER_BY * speedup(first)",
        "speedup(other) > speedup(first)",
        IN_VERDICT,
    ),
    Mutant(
        "a route that does not pay drafts",
        VERDICT,
        "fixed.num_draft_tokens if pays else 0",
        "fixed.num_draft_tokens",
        IN_VERDICT,
    ),
    Mutant(
        "what is off because of its slowest requests adapts",
        VERDICT,
        'verdict == "off" and not lost',
        "False",
        IN_VERDICT,
    ),
    Mutant(
        "the bound of p10 is that of p90",
        VERDICT,
        "quantile_ranks(len(speedups), 0.1)",
        "quantile_ranks(len(speedups), 0.9)",
        IN_VERDICT,
    ),
    Mutant(
        "intervals shrink with the number of requests",
        VERDICT,
        "(reach / abs(speedup.value - 1)) ** 2",
        "reach / abs(speedup.value - 1)",
        IN_VERDICT,
    ),
    Mutant("a chance may be 1", VERDICT, "(a + 1) / (r + 2)", "a / max(r, 1)", IN_VERDICT),
    Mutant(
        "confidence is read where it does not pay",
        VERDICT,
        "saved += blind - read",
        "saved += read - blind",
        IN_ADAPTIVE,
    ),
    Mutant(
        "a drafter is chosen in each round for any gain",
        f"{OF}verdicts/routing.py",
        "if gain < BETTER_BY:",
        "if gain < 0:",
        (f"{TESTS}verdicts/test_routing_chains.py",),
    ),
    Mutant(
        "a guess makes a draft token dearer",
        f"{OF}verdicts/chains.py",
        "spent / whole",
        "whole / spent",
        (f"{TESTS}verdicts/test_chains.py",),
    ),
    Mutant(
        "tokens of one request are on both sides of a fit",
        FIT,
        "folds[numbers]",
        "np.random.default_rng(seed).integers(0, FOLDS, len(request))",
        IN_FIT,
    ),
    Mutant(
        "a curve is judged on what it was fitted on",
        CURVES,
        "out, rest = fold == left_out, fold != left_out",
        "out, rest = fold == left_out, fold >= 0",
        IN_FIT,
    ),
    Mutant(
        "two features are better by chance", FIT, "2 * _standard_error(least - losses, tokens.request)", "0.0", IN_FIT
    ),
    Mutant(
        "errors of calibration cancel out",
        f"{OF}survival/quality.py",
        "abs(predicted - observed)",
        "(predicted - observed)",
        (f"{TESTS}survival/test_quality.py",),
    ),
    Mutant(
        "the warm-up of a precision counts",
        "exporter/precision_search.py",
        "if number:",
        "if number >= 0:",
        IN_PRECISIONS,
    ),
    Mutant(
        "the fastest precision, however wrong",
        "exporter/precision_search.py",
        "drafts and divergences[pair.target] <= max_divergence",
        "drafts",
        IN_PRECISIONS,
        "pick",
    ),
    Mutant(
        "later columns do not compensate for a block",
        "exporter/weights/gptq.py",
        "work[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)",
        "pass",
        IN_GPTQ,
    ),
    Mutant(
        "damping does not follow the inputs' size", "exporter/weights/gptq.py", "damping * mean", "damping", IN_GPTQ
    ),
    Mutant(
        "the rows with the largest outputs decide",
        "exporter/weights/smoothing.py",
        "relative(group.rows, matrices)",
        "group.rows",
        IN_SMOOTHING,
    ),
    Mutant(
        "a migration is judged on the rows that it was chosen on",
        "exporter/weights/smoothing.py",
        "(rows[:middle], rows[middle:]) if middle else (rows, rows)",
        "(rows, rows)",
        IN_SMOOTHING,
    ),
    Mutant(
        "a block of int4 that does not divide the inputs",
        "exporter/weights/search.py",
        "block <= self.options.block and inputs % block == 0",
        "block <= self.options.block",
        ("tests/exporter/weights/test_search.py",),
    ),
    Mutant(
        "the quantized model is compared with itself",
        "exporter/weights/fidelity.py",
        "theirs - ours",
        "theirs - theirs",
        ("tests/exporter/weights/test_fidelity.py",),
    ),
    Mutant(
        "costs between two contexts are those of the other end",
        MODEL,
        "(context - low.context) / (high.context - low.context)",
        "(high.context - context) / (high.context - low.context)",
        IN_MODEL,
    ),
    Mutant(
        "a round that was looked up has no time of the host",
        MODEL,
        "self.verify[num_draft_tokens] + self.host[num_draft_tokens]",
        "self.verify[num_draft_tokens]",
        IN_MODEL,
    ),
    Mutant(
        "the first round after another k is timed",
        METER,
        "range(self._burst_rounds + 1)",
        "range(1, self._burst_rounds + 2)",
        IN_METER,
    ),
    Mutant("draft passes are added up", METER, "seconds / k", "seconds", IN_METER),
    Mutant(
        "decisions of another bundle are followed",
        "runtime/policy/files.py",
        "if value.bundle != bundle_identity(bundle, draft):",
        "if not value.bundle:",
        IN_DECISIONS,
    ),
    Mutant(
        "a decision is written in place",
        "runtime/policy/files.py",
        "write_whole(bundle.path(name), text.encode())",
        "bundle.path(name).write_bytes(text.encode())",
        IN_DECISIONS,
    ),
    Mutant("a container's limit is no part of the host", HOST, "limit < cores", "limit < 0", IN_DECISIONS),
)
