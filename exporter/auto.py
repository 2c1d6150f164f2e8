"""`--precision auto`: every combination of formats, proved and run on this host; the fastest good one is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..bundle import ELEMENT_BYTES, Bundle, DraftSpec, Format, ModelSpec, Role
from ..bundle.auto_precision import PrecisionCandidate, PrecisionTable
from ..bundle.files import require_space_for
from ..engines.base import Engine, OpenedDraft
from ..engines.onnxruntime.cpu import DIALECT, NAME, OrtDecoder
from ..engines.onnxruntime.graphs import open_graph
from ..errors import ProofError
from ..runtime.policy.host_identity import describe_host
from ..runtime.session import Session
from .bundle_files import Contents, make_manifest, write_maps, write_text
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.shared_vocabulary import Translation
from .export_model import ModelExport, export_model
from .memory import require_memory_for_all
from .options import BuildContext, BuildOptions, CalibrationTexts
from .precision import PrecisionPlan
from .precision_search import PROMPTS, PrecisionPair, Speeds, is_close, measure_speeds, pick, slower, spread
from .proving.prove import prove
from .recipe_choice import Quantizing

FORMATS: tuple[Format, ...] = ("float", "int8", "int4")
# Of the user's, which are run if a call is close. Of the shipped ones, nobody's requests, no more than PROMPTS.
MAX_PROMPTS = 48
PROMPT_TOKENS = 48
NEW_TOKENS = 48
Models = Mapping[Role, Checkpoint]
Variant = tuple[Role, Format]


@dataclass
class _Proved:
    """Graphs that passed their proof. left_out: formats that failed it or move the model too far, with the reason."""

    specs: dict[Variant, ModelSpec] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> list[PrecisionPair]:
        targets = [form for form in FORMATS if ("target", form) in self.specs]
        drafts: list[Format | None] = [form for form in FORMATS if ("draft", form) in self.specs]
        return [PrecisionPair(target, draft) for target in targets for draft in drafts or [None]]

    @property
    def divergences(self) -> dict[Format, float]:
        """Of the target, in nats."""
        targets = {form: spec for (role, form), spec in self.specs.items() if role == "target"}
        return {form: spec.fidelity.divergence if spec.fidelity else 0.0 for form, spec in targets.items()}


def measure_precisions(
    models: Models,
    translation: Translation | None,
    texts: CalibrationTexts,
    options: BuildOptions,
    context: BuildContext,
) -> PrecisionTable:
    """Export all formats of both models, and measure every pair on the first tokens of the texts.

    context: with a staging_dir of its own. A format that moves the target too far is left out before its graphs are
    made, and one whose graphs are not what they should be. Raises what the exports raise, `ProofError` where the
    unquantized graphs fail, and `OutputError` where all models at once do not fit into memory or on the disk.
    """
    require_memory_for_all(sum(model.fp32_bytes // ELEMENT_BYTES["fp32"] for model in models.values()), FORMATS)
    exports = {
        form: {
            role: ModelExport(
                model,
                role,
                ("ort",),
                Quantizing.of(_numbers(form, context), role, texts),
                options.divergence_allowed if role == "target" else None,
            )
            for role, model in models.items()
        }
        for form in FORMATS
    }
    every = [export for of_format in exports.values() for export in of_format.values()]
    sizes = {export.key(context.contract): export.weight_bytes(context.contract) for export in every}
    require_space_for(sizes, context.cache, context.staging_dir)
    proved = _Proved()
    for form, of_format in exports.items():
        _prove_format(form, of_format, context, proved)
    sessions = _sessions(models, translation, proved, options, context)
    prompts = _prompts(next(iter(sessions.values())), texts)
    moved, allowed = proved.divergences, options.divergence_allowed
    with context.progress.stage("measure", len(prompts) + 1) as step:
        speeds = measure_speeds(sessions, prompts, NEW_TOKENS, step, lambda found: is_close(found, moved, allowed))
    best = pick(speeds, moved, allowed)
    return PrecisionTable(
        host=describe_host(NAME),
        max_divergence=allowed,
        prompts=len(speeds[best, True].seconds),
        new_tokens=NEW_TOKENS,
        target=best.target,
        draft=best.draft,
        candidates=tuple(_candidates(proved, speeds, best, context)),
        left_out=tuple(proved.left_out),
    )


def _numbers(form: Format, context: BuildContext) -> PrecisionPlan:
    return PrecisionPlan(context.contract.precision, {"target": form, "draft": form}, "onnxruntime")


def _prove_format(form: Format, exports: dict[Role, ModelExport], context: BuildContext, proved: _Proved) -> None:
    """Adds to `proved`."""
    place = replace(context, staging_dir=context.staging_dir / form)
    for role, export in exports.items():
        try:
            spec = export_model(export, place)
            with context.progress.stage(f"prove {role} in {form}", 1) as step:
                spec = prove(place.staging_dir, role, spec, context.contract, (NAME,), step)
        except ProofError as error:
            if form == FORMATS[0]:
                raise
            proved.left_out.append(f"{role} in {form}: {error}")
        else:
            proved.specs[role, form] = spec.inside(form)


def _sessions(
    models: Models, translation: Translation | None, proved: _Proved, options: BuildOptions, context: BuildContext
) -> dict[PrecisionPair, Session]:
    """One per pair of formats. Pairs share the decoders."""
    folder, contract = context.staging_dir, context.contract
    decoders = {key: OrtDecoder(folder / spec.graphs[DIALECT], spec, contract) for key, spec in proved.specs.items()}
    text, sessions = write_text(models["target"], folder), {}
    for pair in proved.pairs:
        target, drafts, opened = proved.specs["target", pair.target], [], None
        if pair.draft is not None:
            spec = proved.specs["draft", pair.draft]
            maps = write_maps(translation, target, spec, options.min_overlap, folder)
            drafts, opened = [DraftSpec("draft", spec, maps)], OpenedDraft(decoders["draft", pair.draft])
        contents = Contents(target, tuple(drafts), text, (NAME,))
        engine = Engine(NAME, DIALECT, decoders["target", pair.target], opened, open_graph)
        bundle = Bundle(folder, make_manifest(contents, contract, folder, command=""))
        sessions[pair] = Session(bundle, engine, policy=False)
    return sessions


def _candidates(
    proved: _Proved, speeds: Speeds, taken: PrecisionPair, context: BuildContext
) -> Iterator[PrecisionCandidate]:
    plain = {pair.target: speed.tokens_per_second for (pair, drafts), speed in speeds.items() if not drafts}
    for pair in proved.pairs:
        target, speed = proved.specs["target", pair.target], speeds[pair, True]
        used = [target] if pair.draft is None else [target, proved.specs["draft", pair.draft]]
        ratio = slower(speed, speeds[taken, True])
        yield PrecisionCandidate(
            target=pair.target,
            draft=pair.draft,
            weight_bytes=sum((context.staging_dir / spec.weights).stat().st_size for spec in used),
            perplexity_loss=target.fidelity.loss if target.fidelity else 0.0,
            divergence=proved.divergences[pair.target],
            plain=plain[pair.target],
            speculative=speed.tokens_per_second,
            low=speed.low,
            high=speed.high,
            acceptance_length=speed.acceptance_length,
            slower=ratio.value,
            slower_low=ratio.low,
            slower_high=ratio.high,
        )


def _prompts(session: Session, texts: CalibrationTexts) -> list[list[int]]:
    """The first tokens of some texts, with room to generate after them."""
    room = min(PROMPT_TOKENS, session.capacity - NEW_TOKENS)
    chosen = spread(texts.texts, MAX_PROMPTS if texts.own else PROMPTS)
    return [session.tokenizer.encode(text).ids[: max(1, room)] for text in chosen]
