"""`specexport verify`: the tiers of docs/losslessness.md, on this host and its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...bundle import ModelSpec, Proof
from ...engines.base import OpenedDraft
from ...engines.rules import rule_specs
from ...errors import BundleError, PromptError
from ..drafting.names import check_drafter
from ..sampling.acceptance import VERIFY
from ..sampling.parameters import SamplingParameters
from ..session import Session
from ..text.prompt_file import read_prompt_lines
from .chi_squared import FALSE_ALARM, Sampled, exact_joint, sample_session
from .enumeration import Exactness, check_rules
from .equality import Equality, RowExactness, check_equality, measure_rows
from .parity import arithmetic, measure
from .reference_file import load_reference
from .rule_parity import RuleProof, measure_rule
from .tree_enumeration import check_trees
from .tree_parity import TreeDecoder, measure_trees

# Without prompts from the user, this many pieces of the proof's own tokens are used.
DEFAULT_PROMPTS = 8
ROW_TOKENS = 32  # over which rows are compared
# Sampling is tested over the 16 most probable tokens of two positions: 256 cells give a test with power, a whole
# vocabulary does not.
SAMPLED = SamplingParameters(temperature=1.0, top_k=16)
SAMPLED_LENGTH = 2
# Of the steps of a stage: the function it gives announces the next.
Announce = Callable[[str], object]
Stage = Callable[[str, int], AbstractContextManager[Announce]]


@dataclass(frozen=True)
class Report:
    """exactness: one entry per verification rule (L0); compiled: one per rule, compared with the numpy rule of
    L0; parity: one per model; equalities: one per prompt and draft (L1 and L2); sampled: one per way to draft and
    verify (L3), none when no trials were requested; drafters: those that each prompt ran with; rows: how exact the
    engine is, of which L1 makes no demand on a GPU.
    """

    exactness: tuple[Exactness, ...]
    compiled: tuple[RuleProof, ...]
    parity: tuple[Proof, ...]
    equalities: tuple[Equality, ...]
    sampled: tuple[Sampled, ...]
    drafters: tuple[str, ...]
    rows: RowExactness

    @property
    def passed(self) -> bool:
        tiers: tuple[Sequence[Exactness | RuleProof | Proof | Equality | Sampled], ...]
        tiers = (self.exactness, self.compiled, self.parity, self.equalities, self.sampled)
        return all(entry.passed for tier in tiers for entry in tier)

    @property
    def drafted(self) -> int:
        """Number of draft tokens of L1 and L2 over all prompts."""
        return sum(entry.drafted for entry in self.equalities)

    @property
    def undrafted(self) -> tuple[str, ...]:
        """Checks that passed but drafted nothing, and so say nothing about speculation."""
        greedy = ("L1", "L2") if self.equalities and not self.drafted else ()
        return greedy + tuple(f"L3 ({entry.verification} verification)" for entry in self.sampled if not entry.drafted)

    def as_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "exactness": [asdict(entry) for entry in self.exactness],
            "compiled": [asdict(entry) for entry in self.compiled],
            "parity": [asdict(proof) for proof in self.parity],
            "prompts": len(self.equalities),
            "drafters": list(self.drafters),
            "equal_at_same_width": sum(entry.same_width for entry in self.equalities),
            "near_ties_at_same_width": sum(entry.row_tie for entry in self.equalities),
            "rows": asdict(self.rows),
            "equal_at_width_1": sum(entry.first_difference is None for entry in self.equalities),
            "near_ties": sum(entry.first_difference is not None and entry.near_tie for entry in self.equalities),
            "incomplete": sum(not entry.complete for entry in self.equalities),
            "drafted": self.drafted,
            "undrafted": list(self.undrafted),
            "sampled": [asdict(entry) | {"passed": entry.passed} for entry in self.sampled],
        }


def verify_session(
    session: Session,
    prompts: Path | None,
    max_new_tokens: int,
    trials: int = 0,
    drafter: str | None = None,
    stage: Stage = lambda label, steps: nullcontext(str),
) -> Report:
    """Runs all tiers: the rules by enumeration, the models against the recorded Hugging Face logits, greedy equality
    over the prompts, and for each way to draft and verify `trials` generations against the target's exact distribution.
    All of them draft the bundle's maximum per round, whatever its policy says.

    drafter: of the generations, by default every draft in turn, and the first for the trials. prompts: JSONL as for
    `specexport bench`, with or without routes. stage: shows how far it is. Raises `ParameterError`
    naming an invalid line.
    """
    manifest, vocab_size = session.bundle.manifest, session.bundle.manifest.target.vocab_size
    named = check_drafter(drafter, manifest.draft_names)
    if prompts is not None:
        requests = _requests(session, prompts, max_new_tokens)
    else:
        requests = [(prompt, max_new_tokens) for prompt in _proof_prompts(session)]
    drafts = [(manifest.draft_called(name), session.drafts.open(name)) for name in session.drafts.names]
    session.reset()  # from here on, rows are written of which it knows nothing
    with stage("parity", 1 + len(drafts)) as announce:
        announce("target")
        proofs = _parity(session, manifest.target, OpenedDraft(session.engine.target), "target")
        for draft, opened in drafts:
            announce(draft.label)
            proofs += _parity(session, draft.model, opened, draft.label)
        rows = measure_rows(session.engine.target, _proof_tokens(session)[:ROW_TOKENS], manifest.contract)
    sampled: tuple[Sampled, ...] = ()
    if trials:
        with stage("L3", len(VERIFY)) as announce:
            sampled = tuple(_sample(session, requests[0][0], trials, named, announce))
    drafters = (named, *(session.drafts.names[1:] if drafter is None else ()))
    with stage("L1, L2", len(drafters) * len(requests)) as announce:
        equalities = tuple(_equalities(session, requests, drafters, announce))
    with stage("L0", 1) as announce:
        announce("rules")
        exactness = check_rules()
        if session.engine.trees is not None:
            exactness.append(check_trees())
        rules, open_rule = rule_specs(manifest.contract.max_draft_tokens), session.engine.open_rule
        compiled = tuple(measure_rule(open_rule(rule), rule, vocab_size) for rule in rules) if open_rule else ()
    return Report(tuple(exactness), compiled, tuple(proofs), equalities, sampled, drafters, rows)


def _parity(session: Session, model: ModelSpec, opened: OpenedDraft, called: str) -> list[Proof]:
    reference = load_reference(session.bundle.path(model.reference))
    where, contract = (session.engine.name, session.engine.dialect), session.bundle.manifest.contract
    kind = arithmetic(model, contract)
    proofs = measure(opened, reference, where, called, kind)
    if called == "target" and session.engine.trees is not None:
        assert isinstance(opened.decoder, TreeDecoder)
        proofs.append(measure_trees(opened.decoder, reference, contract, where, kind))
    return proofs


def _equalities(
    session: Session, requests: Sequence[tuple[Sequence[int], int]], drafters: Sequence[str], announce: Announce
) -> Iterator[Equality]:
    for drafter in drafters:
        for place, (prompt, most) in enumerate(requests, 1):
            announce(f"{drafter}, prompt {place}")
            yield check_equality(session, prompt, most, drafter)


def _sample(
    session: Session, prompt: Sequence[int], trials: int, drafter: str, announce: Announce
) -> Iterator[Sampled]:
    """L3 after `prompt`, or as much of it as leaves room."""
    contract, target = session.bundle.manifest.contract, session.engine.target
    prompt = prompt[: contract.capacity - SAMPLED_LENGTH - 2 * contract.widest_step]
    session.reset()
    expected = exact_joint(target, prompt, SAMPLED, SAMPLED_LENGTH, contract.prompt_chunk)
    for verification in VERIFY:
        announce(f"{verification} verification")
        way = replace(SAMPLED, drafter=drafter, verification=verification, num_draft_tokens=session.max_draft_tokens)
        yield sample_session(session, prompt, way, expected, trials)
    session.reset()


def render(result: Report) -> str:
    row = result.as_dict()
    lines = [
        f"L0         {entry.rule} verification: the target's own distribution to {entry.error:.0e} "
        f"over {entry.models} small built-in models, enumerated"
        for entry in result.exactness
    ]
    if result.compiled:
        equal = sum(entry.passed for entry in result.compiled)
        cases = sum(entry.cases for entry in result.compiled)
        lines.append(
            f"rules      {equal} of {len(result.compiled)} rules of the device give what the enumerated rules give, "
            f"{cases} cases"
        )
    lines += [
        f"parity     {proof.role}{f', {what},' if (what := proof.dialect.partition(', ')[2]) else ''} on "
        f"{proof.engine}: "
        f"{proof.measure} over {proof.rows} rows and {proof.length} tokens "
        f"(allowed {proof.limit})"
        for proof in result.parity
    ]
    found = result.rows
    apart = "" if found.exact == found.rows else f", others are up to {found.delta:.1e} standard deviations apart"
    lines.append(f"rows       {found.exact} of {found.rows} are bit-identical at another position in a pass{apart}")
    runs = f"{row['prompts']} prompts"
    drafters = f"drafter {result.drafters[0]}"
    if (several := len(result.drafters)) > 1:
        drafters = f"drafters {', '.join(result.drafters)}"
        runs = f"{row['prompts']} runs ({row['prompts'] // several} prompts x {several} drafters)"
    lines += [
        f"L1         {drafters}: {row['equal_at_same_width']} of {runs} equal to plain greedy at the same width, "
        + (f"{ties} equal up to a near tie of two logits, " if (ties := row["near_ties_at_same_width"]) else "")
        + f"{result.drafted} tokens drafted",
        f"L2         {row['equal_at_width_1']} of {row['prompts']} equal to plain greedy at width 1, "
        f"{row['near_ties']} equal up to a near tie of two logits"
        + (f", {row['incomplete']} where one output ends early" if row["incomplete"] else ""),
        *(
            f"L3         drafter {entry.drafter}, {entry.verification} verification: chi-squared {entry.statistic:.1f} "
            f"over {entry.cells} cells and {entry.trials} trials, {entry.drafted} tokens drafted "
            f"(a correct sampler exceeds {entry.limit:.1f} once in {round(1 / FALSE_ALARM):,} runs)"
            for entry in result.sampled
        ),
        *(() if result.sampled else ("L3         sampled output was not tested; --trials 10000 does",)),
        _outcome(result),
    ]
    return "\n".join(lines)


def _outcome(result: Report) -> str:
    if not result.passed:
        return "FAILED: this bundle does not produce the target's own output on this host; build it again here"
    if result.undrafted:
        return (
            f"passed, but {' and '.join(result.undrafted)} drafted nothing, so speculation was not tested; "
            "give more --max-new-tokens, other prompts or another --drafter"
        )
    return "passed"


def _requests(session: Session, path: Path, max_new_tokens: int) -> list[tuple[Sequence[int], int]]:
    """Prompts as token ids, each with the most tokens to generate."""
    lines, _ = read_prompt_lines(path, routed=False)
    requests: list[tuple[Sequence[int], int]] = []
    for line in lines:
        try:
            tokens = session.encode(line.prompt)
        except (PromptError, BundleError) as error:  # the latter for messages and a tokenizer without a chat template
            raise PromptError(f"{line.where}: {error}", error.field) from None
        requests.append((tokens, line.max_new_tokens or max_new_tokens))
    return requests


def _proof_tokens(session: Session) -> Sequence[int]:
    first = load_reference(session.bundle.path(session.bundle.manifest.target.reference))[0]
    return [int(token) for token in first.step.tokens]


def _proof_prompts(session: Session) -> list[Sequence[int]]:
    tokens = _proof_tokens(session)
    size = max(1, len(tokens) // DEFAULT_PROMPTS)
    return [tokens[start : start + size] for start in range(0, len(tokens), size)][:DEFAULT_PROMPTS]
