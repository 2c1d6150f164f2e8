"""The report's prose: the title of each section, and how to read it."""

from __future__ import annotations

from ..statistics.results import Analysis
from ..statistics.sample_size import FEW, USUAL
from ..survival.fit import LEAST_TOKENS
from ..verdicts.verdict import BETTER_BY, LEAST_REQUESTS, SHORTEST_RESPONSE
from .tables import times

# Predicted and measured speedups that differ by more than this share show that costs or traces do not fit the runs.
PREDICTION_TOLERANCE = 0.05

# docs/when-it-pays.md goes through the sections by these titles.
TITLES = {
    "verdicts": "Verdicts",
    "acceptance": "Acceptance by position",
    "costs": "Cost of a round",
    "speedups": "Speedup by k",
    "distribution": "Speedup per request",
    "lengths": "Tokens per round, by request and by length",
    "predicted": "Predicted and measured speedup",
    "signals": "Calibration of the acceptance estimate",
    "latency": "Latency",
    "provenance": "How it was measured",
}

# Paragraphs, with an empty line between them.
VERDICTS = """
ON: the lower end of the speedup's 95 % interval is above 1, and the p10 speedup, which nine requests in ten exceed,
reaches {floor}. OFF: the upper end is below 1, or p10 is below {floor} with 97.5 % confidence. UNDECIDED: neither, or
fewer than {least_requests} requests; missing says about how many more a verdict needs. Responses of fewer than
{shortest_response} tokens end after a round or two; they do not count for requests, p10 and slower.

Runs: how requests of the route will run. Fixed: k draft tokens every round. Plain: no drafts. Adaptive: each round
drafts as many tokens as pay, which may be none; the figures are those of a replayed adaptive session, and k is the best
fixed number, for comparison. A route can be ON although every fixed number loses; it is OFF if an adaptive session only
falls back to plain decoding.

Drafter and k are the best that were tried, even if none was good enough. Speedups are relative to plain decoding,
exclude the prefill, and are expected values: replayed from the recorded runs with the measured costs. Slower: the share
of the requests that would lose.

The usual advice is {usual} requests per route. What fewer can tell, with 95 % confidence, for any distribution:
"""

ACCEPTANCE = """
By position in the draft: of the rounds that reached a draft token (all before it were accepted), the share that
accepted it. This section is about the drafter of the recorded runs.

The textbook: if every token were accepted with the same probability alpha, a round of k draft tokens would yield tau =
(1 - alpha^(k+1)) / (1 - alpha) tokens, including the bonus token. Real text has easy and hard stretches: if a(k),
measured on the recorded text, differs from tau, alpha alone is misleading.
"""

COSTS = """
A round drafts k tokens (k draft passes of d each, or a lookup), checks them in one target pass over k + 1 tokens,
v(k+1), and takes h on the host. A plain round, k = 0, takes t1. The break-even a*(k) is a round's time divided by t1:
the tokens a round must yield, including the bonus token, to be as fast as plain decoding. A route whose a(k) is above
a*(k) gains.
"""

SPEEDUPS = """
S(k) = a(k) / a*(k), with its 95 % interval, resampled by request: the tokens of a request are correlated, and counting
each of them as separate evidence would make the interval too narrow.

All of these are replayed from the same recorded runs. The best of many looks slightly too good by chance; the measured
speedups below do not. The drafter of the recorded runs is kept unless another is {better_by} % better. Drafters that
--drafter leaves out are replayed for comparison, and not chosen.
"""

DISTRIBUTION = """
A mean hides the requests that lose. The curves show the speedups of all requests, in order: where a curve crosses 1,
that share of the requests is slower than plain decoding. Expected: the best drafter and k, replayed. Measured: the
recorded runs, plain and speculative interleaved, always with the largest k.
"""

LENGTHS = """
The usual advice is {usual} requests per bucket. A bucket of fewer than {few} says little, whatever its mean is: look at
the interval.
"""

PREDICTED = """
The same runs twice: predicted from costs and traces, and measured, each request plain and speculative, interleaved. If
the two differ by more than {prediction_tolerance} %, the costs do not fit the runs (other load, clock speed or
lengths): measure again on a quiet machine before you rely on a close verdict. Only the drafter and k of this table have
run; the others are replayed. To confirm those, run specexport bench on other prompts.
"""

SIGNALS = """
While drafting, the runtime estimates each token's probability of being accepted, and stops when the next token does not
pay. Error: the expected calibration error, the mean distance between estimate and outcome on requests that the estimate
was not fitted on; of single tokens, and of the product along the draft. AUC: how well the estimate separates accepted
from rejected tokens; 0.5 is guessing.
"""

NO_SIGNALS = """
Nothing was fitted here. That needs a draft model whose confidence can be read, and at least {least_tokens} of its
tokens that the target judged, in at least two requests.
"""

LATENCY = """
Median time to the first token, and time per token after it, measured with the largest k. Compare only within a pair of
rows: absolute times are specific to this host at that time.
"""

PROVENANCE = """
Each prompt ran plain and speculative, interleaved, on the same machine, and was traced. The trace says where in the
text the draft agrees with the target, so one run is enough for every drafter and every k. Everything that is not called
measured is replayed from the traces.
"""

# A finding, not an explanation: the report shows it if requests were sampled.
SAMPLED = "When sampling, acceptance is partly chance: replays of other drafters and k use the recorded outcomes."

EXPLANATIONS = {
    "verdicts": VERDICTS,
    "acceptance": ACCEPTANCE,
    "costs": COSTS,
    "speedups": SPEEDUPS,
    "distribution": DISTRIBUTION,
    "lengths": LENGTHS,
    "predicted": PREDICTED,
    "signals": SIGNALS,
    "latency": LATENCY,
    "provenance": PROVENANCE,
}


def explanation(key: str, analysis: Analysis) -> tuple[str, ...]:
    """The paragraphs of the section `key`."""
    text = NO_SIGNALS if key == "signals" and not analysis.signals else EXPLANATIONS[key]
    filled = text.format(
        floor=times(analysis.floor),
        least_requests=LEAST_REQUESTS,
        shortest_response=SHORTEST_RESPONSE,
        better_by=f"{100 * (BETTER_BY - 1):.0f}",
        prediction_tolerance=f"{100 * PREDICTION_TOLERANCE:.0f}",
        usual=USUAL,
        few=FEW,
        least_tokens=LEAST_TOKENS,
    )
    return tuple(" ".join(paragraph.split()) for paragraph in filled.split("\n\n"))
