"""`--precision auto`: every combination of formats is made and proved, run on this host, and the fastest good one is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..bundle import ELEMENT_BYTES, Bundle, Contract, Format, ModelSpec, Proof, Role
from ..calibration.precision_search import PrecisionPair, measure_speeds, pick
from ..engines.base import Engine
from ..engines.onnxruntime.cpu import DIALECT, NAME, OrtDecoder, open_graph
from ..errors import ProofError
from ..runtime.auto_precision import PrecisionCandidate, PrecisionTable
from ..runtime.policy.host_identity import describe_host
from ..runtime.session import Session
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.memory_check import require_memory_for_all
from .checkpoints.shared_vocabulary import Translation
from .dialects import Dialect
from .export_model import Quantizing, export_model
from .progress import Timed
from .proving.prove import prove
from .request.precision_choice import Numbers
from .storage.manifest import make_manifest, write_maps, write_text

FORMATS: tuple[Format, ...] = ("float", "int8", "int4")
PROMPTS = 12
PROMPT_TOKENS = 48
NEW_TOKENS = 48


def measure_precisions(
    models: dict[Role, Checkpoint],
    contract: Contract,
    translation: Translation | None,
    given: tuple[Sequence[str], bool],
    max_divergence: float,
    min_overlap: float,
    scratch: Path,
    cache: Path,
    progress: Timed,
) -> PrecisionTable:
    """Export all formats of both models under `scratch`, and measure every pair on the first tokens of the texts.

    given: the texts of calibration, and whether they are the user's own.

    A format whose graphs are not what they should be is left out. Raises what the exports raise, `ProofError` where
    the unquantized graphs fail, and `OutputError` where all models at once do not fit into memory.
    """
    require_memory_for_all(sum(model.fp32_bytes // ELEMENT_BYTES["fp32"] for model in models.values()), FORMATS)
    specs: dict[tuple[Role, Format], ModelSpec] = {}
    proofs: dict[tuple[Role, Format], tuple[Proof, ...]] = {}
    left_out: list[str] = []
    dialects: tuple[Dialect, ...] = ("ort",)
    for form in FORMATS:
        place = scratch / form
        forms = Numbers(contract.precision, {"target": form, "draft": form}, "onnxruntime")
        made = {
            role: export_model(
                model, role, contract, place, cache, progress, dialects, Quantizing.of(forms, role, *given)
            )
            for role, model in models.items()
        }
        with progress.stage(f"prove {forms.name('target')}", len(made)) as step:
            for role, spec in made.items():
                try:
                    proofs[role, form] = prove(place, {role: spec}, contract, (NAME,), step)
                except ProofError as error:
                    if form == FORMATS[0]:
                        raise
                    left_out.append(f"{role} in {form}: {error}")
                else:
                    specs[role, form] = _under(form, spec)
    decoders = {key: OrtDecoder(scratch / spec.graphs[DIALECT], spec, contract) for key, spec in specs.items()}
    text = write_text(models["target"], scratch)
    first = {role: specs[role, FORMATS[0]] for role in models}
    some = tuple(proof for role in models for proof in proofs[role, FORMATS[0]])
    whole = make_manifest(contract, first, None, text, (NAME,), (), some, scratch, "")
    formats = {role: [form for form in FORMATS if (role, form) in specs] for role in models}
    pairs = [PrecisionPair(target, draft) for target in formats["target"] for draft in formats.get("draft", [None])]
    sessions = {}
    for pair in pairs:
        keys: dict[Role, tuple[Role, Format]] = {"target": ("target", pair.target)}
        if pair.draft is not None:
            keys["draft"] = ("draft", pair.draft)
        of_pair = {role: specs[key] for role, key in keys.items()}
        vocabulary = write_maps(translation, of_pair, min_overlap, scratch) if translation else None
        proved = tuple(proof for key in keys.values() for proof in proofs[key])
        manifest = replace(
            whole, target=of_pair["target"], draft=of_pair.get("draft"), vocabulary=vocabulary, proofs=proved
        )
        draft = decoders["draft", pair.draft] if pair.draft is not None else None
        engine = Engine(NAME, DIALECT, decoders["target", pair.target], draft, open_graph)
        sessions[pair] = Session(Bundle(scratch, manifest), engine, policy=False)
    prompts = _prompts(sessions[pairs[0]], given[0])
    with progress.stage("measure", len(prompts) + 1) as step:
        speeds = measure_speeds(sessions, prompts, NEW_TOKENS, step)
    candidates = []
    plain = {pair.target: speed.tokens_per_second for (pair, drafts), speed in speeds.items() if not drafts}
    for pair in pairs:
        target = specs["target", pair.target]
        used = [target] if pair.draft is None else [target, specs["draft", pair.draft]]
        candidates.append(
            PrecisionCandidate(
                target=pair.target,
                draft=pair.draft,
                weight_bytes=sum((scratch / spec.weights).stat().st_size for spec in used),
                perplexity_loss=target.fidelity.loss if target.fidelity else 0.0,
                divergence=target.fidelity.divergence if target.fidelity else 0.0,
                plain=plain[pair.target],
                speculative=speeds[pair, True].tokens_per_second,
                low=speeds[pair, True].low,
                high=speeds[pair, True].high,
                acceptance_length=speeds[pair, True].acceptance_length,
            )
        )
    best = pick(candidates, max_divergence)
    chosen = best.target, best.draft, tuple(candidates), tuple(left_out)
    return PrecisionTable(describe_host(NAME), max_divergence, len(prompts), NEW_TOKENS, *chosen)


def _under(form: Format, spec: ModelSpec) -> ModelSpec:
    """The same with paths from one folder higher."""
    return replace(
        spec,
        graphs={dialect: f"{form}/{path}" for dialect, path in spec.graphs.items()},
        weights=f"{form}/{spec.weights}",
    )


def _prompts(session: Session, texts: Sequence[str]) -> list[list[int]]:
    """The first tokens of some texts, spread over all, with room behind them to generate."""
    room = min(PROMPT_TOKENS, session.capacity - NEW_TOKENS)
    chosen = texts[:: max(1, len(texts) // PROMPTS)][:PROMPTS]
    return [session.tokenizer.encode(text).ids[: max(1, room)] for text in chosen]
