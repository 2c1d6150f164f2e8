"""`specexport verify`: the proofs of a build once more, on this host and its engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle import ROLES, Proof
from ..errors import ParameterError, PromptError
from .equality import Equality, check_equality
from .parity import load_reference, measure_decoder
from .session import Session

# Without prompts of the user's, this many pieces of the proof's own tokens serve.
DEFAULT_PROMPTS = 8


@dataclass(frozen=True)
class Verification:
    """parity: one entry a model; equalities: one a prompt."""

    parity: tuple[Proof, ...]
    equalities: tuple[Equality, ...]

    @property
    def passed(self) -> bool:
        return all(proof.passed for proof in self.parity) and all(entry.passed for entry in self.equalities)

    def as_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "parity": [asdict(proof) for proof in self.parity],
            "prompts": len(self.equalities),
            "equal_at_same_width": sum(entry.same_width for entry in self.equalities),
            "equal_at_width_1": sum(entry.first_difference is None for entry in self.equalities),
            "near_ties": sum(entry.first_difference is not None and entry.near_tie for entry in self.equalities),
        }


def verify_session(session: Session, prompts: Path | None, max_new_tokens: int) -> Verification:
    """Parity of both models with the recorded Hugging Face logits, then greedy equality over the prompts.

    prompts: JSONL of `{"prompt": ...}`. Raises `ParameterError` naming the line that is none.
    """
    given = _encoded(session, prompts) if prompts else _proof_prompts(session)
    manifest = session.bundle.manifest
    proofs = []
    for role in ROLES:
        reference = load_reference(session.bundle.path(manifest.references[role]))
        decoder = session.engine.target if role == "target" else session.engine.draft
        proofs.append(measure_decoder(decoder, reference, session.engine.name, session.engine.dialect, role, manifest.contract.precision))
    session.reset()
    return Verification(tuple(proofs), tuple(check_equality(session, prompt, max_new_tokens) for prompt in given))


def read_prompts(path: Path) -> Iterator[str]:
    """The `prompt` of every line of a JSONL file."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also cut at U+2028 within a string
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error.strerror}; give a JSONL file of prompts") from None
    except UnicodeDecodeError:
        raise ParameterError(f"{path} is not UTF-8; give a JSONL file of prompts") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str):
            raise ParameterError(f'{path}, line {number}: found {line[:60]!r}, expected {{"prompt": "..."}}')
        yield prompt


def render(result: Verification) -> str:
    row = result.as_dict()
    lines = [
        f"parity     {proof.role} on {proof.engine}: {proof.max_error:.1e} standard deviations off over {proof.rows} rows "
        f"and {proof.length} tokens "
        f"(allowed {proof.tolerance:.0e})"
        for proof in result.parity
    ]
    lines += [
        f"equality   {row['equal_at_same_width']} of {row['prompts']} prompts equal to plain greedy at the same width",
        f"           {row['equal_at_width_1']} equal to plain greedy at width 1, {row['near_ties']} equal up to a near tie of two logits",
        "passed" if result.passed else "FAILED: this bundle does not give the target's own output on this host; build it again here",
    ]
    return "\n".join(lines)


def _encoded(session: Session, path: Path) -> list[list[int]]:
    encoded = []
    for number, prompt in enumerate(read_prompts(path), start=1):
        try:
            encoded.append(session.encode(prompt))
        except PromptError as error:
            raise PromptError(f"prompt {number} of {path}: {error}") from None
    if not encoded:
        raise ParameterError(f'{path} holds no prompt; give lines of {{"prompt": "..."}}')
    return encoded


def _proof_prompts(session: Session) -> list[Sequence[int]]:
    manifest = session.bundle.manifest
    tokens = load_reference(session.bundle.path(manifest.references["target"]))[0].step.tokens.tolist()
    size = max(1, len(tokens) // DEFAULT_PROMPTS)
    return [tokens[start : start + size] for start in range(0, len(tokens), size)][:DEFAULT_PROMPTS]
