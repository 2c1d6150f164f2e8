"""The rules of `runtime/sampling/rules.py` as ONNX graphs, so that a round stays on the device; written and proved.

Standard operators only, for ONNX Runtime, TensorRT and TensorRT-RTX. Shapes are fixed: vocab is the vocabulary's size,
k the number of draft tokens, R = k + 1 the target's rows. Nothing of the vocabulary's size is stored in a graph.

`sampling [4] float32`: temperature above 0, top_k (0 is off, see COMPILED_TOP_K), top_p (1 is off), min_p (0 is off).
`noise float32`: uniforms in [0, 1), a stream for `select` and another for `accept`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir

from ...bundle import Contract, RuleName, RuleSpec
from ...engines.catalogue import LIBRARIES
from ...engines.onnxruntime.graphs import open_graph
from ...errors import ProofError
from ...runtime.proofs.rule_parity import measure_rule
from ...runtime.sampling.parameters import Verification
from .parts import Operand, RuleGraph, argmax, confidence, draw, element, first_unsound, maximum, processed_probs, rows

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64

# The smallest normal float32: dividing by it keeps a ratio finite.
TINY = 1.1754944e-38


def select_greedy(vocab_size: int) -> onnx.ModelProto:
    """logits `[1, vocab]` -> token `[1] int64`, the lowest id of the largest logit; confidence `[1]`.

    confidence: the largest probability of the softmax at temperature 1, NaN where the logits are no numbers.
    """
    op = RuleGraph("select_greedy")
    logits = op.floats("logits", 1, vocab_size)
    top = maximum(op, logits, 1)
    # of NaN, which has none: a model is fed what follows
    token = op.Min(argmax(op, logits, top, 1, vocab_size), vocab_size - 1)
    return op.model({"token": (token, INT64, [1]), "confidence": (confidence(op, logits, top), FLOAT, [1])})


def select(vocab_size: int, fused: bool = True) -> onnx.ModelProto:
    """A draw from one row of logits, by `sampling` (see `parts.processed_probs`).

    logits `[1, vocab]`, noise `[1]`, sampling `[4]` -> token `[1] int64`, draft_probs `[1, vocab]`, confidence `[1]`.
    draft_probs: what the token was drawn from. confidence: as of `select_greedy`, the same whatever was drawn.
    """
    op = RuleGraph("select", fused)
    logits, noise, sampling = op.floats("logits", 1, vocab_size), op.floats("noise", 1), op.floats("sampling", 4)
    probs, top = processed_probs(op, logits, sampling, 1, vocab_size)
    return op.model(
        {
            "token": (draw(op, [probs], noise, vocab_size), INT64, [1]),
            "draft_probs": (probs, FLOAT, [1, vocab_size]),
            "confidence": (confidence(op, logits, top), FLOAT, [1]),
        }
    )


def accept_greedy(vocab_size: int, num_draft_tokens: int) -> onnx.ModelProto:
    """A draft token stands while it is the argmax.

    logits `[R, vocab]`, draft_tokens `[k] int64`, position `[1] int64` -> num_accepted, next_token, next_position, each
    `[1] int64`. position: the cache row of the last known token, the first one that was
    fed; next_position: that of next_token. Cache rows after it hold rejected tokens and are overwritten.
    Where a row of logits that was needed is no numbers, next_token is vocab and num_accepted the row's index.
    """
    num_rows = num_draft_tokens + 1
    op = RuleGraph("accept_greedy")
    logits = op.floats("logits", num_rows, vocab_size)
    draft_tokens, position = op.integers("draft_tokens", num_draft_tokens), op.integers("position", 1)
    top = maximum(op, logits, num_rows)
    best = argmax(op, logits, top, num_rows, vocab_size)  # [R]
    num_accepted = _leading(op, op.Equal(draft_tokens, rows(op, best, 0, num_draft_tokens)), num_draft_tokens)
    return _accepted(op, logits, top, num_accepted, op.Gather(best, num_accepted), position)


def accept(vocab_size: int, num_draft_tokens: int, verification: Verification, fused: bool = True) -> onnx.ModelProto:
    """Token or block verification of drafts that were drawn.

    logits `[R, vocab]`, draft_tokens `[k] int64`, draft_probs `[k, vocab]`, noise `[R]`, sampling `[4]`, position
    `[1] int64` -> num_accepted, next_token, next_position `[1] int64`, positions as of `accept_greedy`.
    draft_probs: what the draft tokens were drawn from, one-hot where they were not. noise: one uniform a draft token,
    and the last one for the token that follows.
    """
    num_rows = num_draft_tokens + 1
    op = RuleGraph(f"accept_{verification}", fused)
    logits = op.floats("logits", num_rows, vocab_size)
    draft_tokens, draft_probs = (
        op.integers("draft_tokens", num_draft_tokens),
        op.floats("draft_probs", num_draft_tokens, vocab_size),
    )
    noise, sampling, position = op.floats("noise", num_rows), op.floats("sampling", 4), op.integers("position", 1)
    target_probs, top = processed_probs(op, logits, sampling, num_rows, vocab_size)

    places = op.Unsqueeze(draft_tokens, [1])
    of_target = op.Squeeze(op.GatherElements(rows(op, target_probs, 0, num_draft_tokens), places, axis=1), [1])  # [k]
    of_draft = op.Squeeze(op.GatherElements(draft_probs, places, axis=1), [1])
    uniforms = rows(op, noise, 0, num_draft_tokens)
    scale: Operand
    if verification == "block":
        ratios = _ratios(op, of_target, of_draft, num_draft_tokens)
        chances = _block_accept_probs(op, ratios, target_probs, draft_probs, num_draft_tokens)
        lengths = op.Range(1, num_draft_tokens + 1, 1)
        num_accepted = op.ReduceMax(op.Where(op.Less(uniforms, chances), lengths, 0), [0], keepdims=1)
        scale = op.Gather(op.Concat([1.0], ratios, axis=0), num_accepted)
    else:
        # Strictly less: a uniform of 0 must not accept what has no probability.
        num_accepted = _leading(op, op.Less(op.Mul(uniforms, of_draft), of_target), num_draft_tokens)
        scale = 1.0
    masses = _following(op, target_probs, draft_probs, num_accepted, scale, num_draft_tokens)
    next_token = draw(op, masses, element(op, noise, num_draft_tokens), vocab_size)
    return _accepted(op, logits, top, num_accepted, next_token, position)


def _leading(op: RuleGraph, stands: ir.Value, num_draft_tokens: int) -> ir.Value:
    """`[k] bool -> [1] int64`: how many come before the first that does not stand."""
    rejected = op.Where(stands, num_draft_tokens, op.Range(0, num_draft_tokens, 1))
    return op.ReduceMin(rejected, [0], keepdims=1)


def _ratios(op: RuleGraph, of_target: ir.Value, of_draft: ir.Value, num_draft_tokens: int) -> ir.Value:
    """`[k]`: P_1 to P_k, how probable the draft's first i tokens are to the target against the draft, capped at 1."""
    single = op.Div(of_target, op.Max(of_draft, TINY))  # never NaN, not even for a token that cannot have been drawn
    ratios = [op.Min(element(op, single, 0), 1.0)]
    for index in range(1, num_draft_tokens):
        ratios.append(op.Min(op.Mul(ratios[-1], element(op, single, index)), 1.0))
    return op.Concat(*ratios, axis=0)


def _block_accept_probs(
    op: RuleGraph, ratios: ir.Value, target_probs: ir.Value, draft_probs: ir.Value, num_draft_tokens: int
) -> ir.Value:
    """`[k]`: h_1 to h_k of block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2)."""
    if num_draft_tokens == 1:
        return ratios
    inner = rows(op, ratios, 0, num_draft_tokens - 1)  # all but the last, which is its own chance
    scaled = op.Mul(op.Unsqueeze(inner, [1]), rows(op, target_probs, 1, num_draft_tokens))
    left = op.Max(op.Sub(scaled, rows(op, draft_probs, 1, num_draft_tokens)), 0.0)
    left = op.ReduceSum(left, [1], keepdims=0)
    whole = op.Add(left, op.Sub(1.0, inner))
    chances = op.Where(op.Greater(whole, 0.0), op.Div(left, whole), 1.0)
    return op.Concat(chances, element(op, ratios, num_draft_tokens - 1), axis=0)


def _following(
    op: RuleGraph,
    target_probs: ir.Value,
    draft_probs: ir.Value,
    num_accepted: ir.Value,
    scale: Operand,
    num_draft_tokens: int,
) -> list[ir.Value]:
    """What the next token is drawn from, `[1, vocab]`: max(scale * target - draft, 0), or after all k the target.

    Where nothing is left, both are the same distribution, and the second is drawn from: the target's.
    """
    target = op.Gather(target_probs, num_accepted, axis=0)
    draft = op.Gather(draft_probs, op.Min(num_accepted, num_draft_tokens - 1), axis=0)
    rejected = op.Less(num_accepted, num_draft_tokens)
    return [op.Max(op.Sub(op.Mul(target, scale), op.Where(rejected, draft, 0.0)), 0.0), target]


def _accepted(
    op: RuleGraph,
    logits: ir.Value,
    top: ir.Value,
    num_accepted: ir.Value,
    next_token: ir.Value,
    position: ir.Value,
) -> onnx.ModelProto:
    """A round ends before the first unsound row, with a token outside the vocabulary."""
    assert logits.shape is not None
    num_rows, vocab_size = (int(size) for size in logits.shape.numpy())
    num_sound = first_unsound(op, logits, top, num_rows)
    sound = op.Less(num_accepted, num_sound)
    num_accepted = op.Min(num_accepted, num_sound)
    next_token = op.Where(sound, next_token, vocab_size)
    next_position = op.Add(op.Add(position, num_accepted), 1)
    outputs = {"num_accepted": num_accepted, "next_token": next_token, "next_position": next_position}
    return op.model({name: (value, INT64, [1]) for name, value in outputs.items()})


FOLDER = "graphs/rules"


def fuses(engines: Iterable[str]) -> bool:
    """Whether one of the engines fuses a rule's small operators."""
    return bool({*engines} & {*LIBRARIES})


def write_rules(
    staging_dir: Path, contract: Contract, vocab_size: int, step: Callable[[str], None], fused: bool = True
) -> tuple[RuleSpec, ...]:
    """Graphs for every k up to the contract's, proved equal to their numpy twins. Raises `ProofError`.

    fused: as of `RuleGraph`.
    """
    (staging_dir / FOLDER).mkdir(parents=True)
    specs = []
    for spec, make in _rules(contract.max_draft_tokens, vocab_size, fused):
        path = staging_dir / spec.graph
        step(path.stem)
        path.write_bytes(make().SerializeToString())
        proof = measure_rule(open_graph(path), spec, vocab_size)
        if not proof.passed:
            raise ProofError(
                f"{path.stem}: {proof.wrong} of {proof.cases} cases differ from the numpy rule, "
                f"numbers by {proof.max_error:.1g}; report this with the vocabulary's size"
            )
        specs.append(spec)
    return tuple(specs)


def number_of_rules(contract: Contract) -> int:
    return len(list(_rules(contract.max_draft_tokens, vocab_size=2)))


def _rules(
    max_draft_tokens: int, vocab_size: int, fused: bool = True
) -> Iterator[tuple[RuleSpec, Callable[[], onnx.ModelProto]]]:
    """What there is, and how each is made. For the draft's rows `num_draft_tokens` are those drafted before."""

    def spec(rule: RuleName, k: int, rows: int, name: str) -> RuleSpec:
        return RuleSpec(rule, k, rows, f"{FOLDER}/{name}.onnx")

    yield spec("select", 0, 1, "select"), partial(select, vocab_size, fused)
    yield spec("select_greedy", 0, 1, "select_greedy"), partial(select_greedy, vocab_size)
    for k in range(1, max_draft_tokens + 1):
        yield spec("accept_greedy", k, k + 1, f"accept_greedy_{k}"), partial(accept_greedy, vocab_size, k)
        yield spec("accept_token", k, k + 1, f"accept_token_{k}"), partial(accept, vocab_size, k, "token", fused)
        yield spec("accept_block", k, k + 1, f"accept_block_{k}"), partial(accept, vocab_size, k, "block", fused)
