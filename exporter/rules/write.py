"""Every rule graph that the rounds of a bundle need, written and proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx

from ...bundle import Contract, RuleName, RuleSpec
from ...engines.onnxruntime.graphs import open_graph
from ...errors import ProofError
from ...runtime.proofs.rule_parity import measure_rule
from .graphs import accept, accept_greedy, select, select_greedy

FOLDER = "graphs/rules"


def write_rules(
    workplace: Path, contract: Contract, vocab_size: int, step: Callable[[str], None]
) -> tuple[RuleSpec, ...]:
    """Graphs for every k up to the contract's, proved equal to their numpy twins. Raises `ProofError`."""
    (workplace / FOLDER).mkdir(parents=True)
    specs = []
    for spec, make in _rules(contract.max_draft_tokens, vocab_size):
        path = workplace / spec.graph
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


def _rules(max_draft_tokens: int, vocab_size: int) -> Iterator[tuple[RuleSpec, Callable[[], onnx.ModelProto]]]:
    """What there is, and how each is made. For the draft's rows `num_draft_tokens` are those drafted before."""

    def spec(rule: RuleName, k: int, rows: int, name: str) -> RuleSpec:
        return RuleSpec(rule, k, rows, f"{FOLDER}/{name}.onnx")

    yield spec("select", 0, 1, "select"), partial(select, vocab_size)
    yield spec("select_greedy", 0, 1, "select_greedy"), partial(select_greedy, vocab_size)
    for k in range(1, max_draft_tokens + 1):
        yield spec("accept_greedy", k, k + 1, f"accept_greedy_{k}"), partial(accept_greedy, vocab_size, k)
        yield spec("accept_token", k, k + 1, f"accept_token_{k}"), partial(accept, vocab_size, k, "token")
        yield spec("accept_block", k, k + 1, f"accept_block_{k}"), partial(accept, vocab_size, k, "block")
