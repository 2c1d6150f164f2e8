"""What a bundle holds, as data and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..bundle import (
    KEEPS,
    MIXED,
    WARNING,
    Bundle,
    CacheLayer,
    DraftSpec,
    Fidelity,
    Manifest,
    ModelSpec,
    Proof,
    TextSpec,
)
from ..bundle.drafts import LOOKUP
from ..engines.catalogue import info_of
from .drafting.names import all_drafters, drafters_of
from .policy.cost_model import COSTS, Costs
from .policy.files import read_by_draft, read_policy, stale
from .policy.routes import UNBOUNDED, Policy, RoutePolicy

MEASURED = "a host's first session measures them, about half a second, and keeps them in the user's cache"
NO_MODEL = f"draft      none: {LOOKUP} looks drafts up in the text"


@dataclass(frozen=True)
class Description:
    """What a bundle holds, and what was decided for it. costs: by draft."""

    manifest: Manifest
    policy: Policy | None
    costs: Mapping[str, Costs]

    def memory_of(self, model: ModelSpec) -> dict[str, int]:
        """The bytes that a session needs: of the weights, of the cache, and of the cache the states of hybrids."""
        contract = self.manifest.contract
        cache, states = model.cache_bytes(contract), model.state_bytes(contract)
        return {"weights": self.manifest.files[model.weights].bytes, "cache": cache, "states": states}

    def as_dict(self) -> dict[str, Any]:
        """The manifest as JSON, with what follows from it, the memory of its models, and what calibration decided."""
        manifest = self.manifest
        described = asdict(manifest) | {
            "memory": {label: self.memory_of(model) for label, model in manifest.models.items()},
            "widths": list(manifest.contract.widths),
            "spans": list(manifest.contract.spans),
            "longest": manifest.longest,
            "drafters": list(all_drafters(manifest.draft_names)),
            "policy": None if self.policy is None else asdict(self.policy),
            "costs": {name: asdict(one) | {"stale": _stale(manifest, one)} for name, one in self.costs.items()},
        }
        for row, draft in zip(described["drafts"], manifest.drafts, strict=True):
            if draft.shared_vocabulary is not None:
                row["shared_vocabulary"]["overlap"] = draft.shared_vocabulary.overlap
        return described


def describe(bundle: Bundle) -> Description:
    """Raises `BundleError` for a policy.json or costs.json that is damaged or of another bundle."""
    costs = read_by_draft(bundle, Costs, COSTS)
    return Description(bundle.manifest, read_policy(bundle), costs)


def render(description: Description) -> str:
    manifest, contract = description.manifest, description.manifest.contract
    spare = contract.capacity - manifest.longest
    room = f" ({contract.capacity} less one that quantized passes keep free)" if spare else ""
    lines = [
        f"built      {manifest.created}  {manifest.command}",
        f"engines    {', '.join(manifest.engines)}; {_precision(manifest)}",
        f"sequence   up to {_counted(manifest.longest, 'token')}{room}, "
        f"{_counted(contract.max_draft_tokens, 'draft token')} per round, "
        f"prompt chunks of {contract.prompt_chunk}, widths {' '.join(map(str, contract.widths))}, "
        f"spans {' '.join(map(str, contract.spans))}",
        f"stops at   token {', '.join(map(str, manifest.text.stop_token_ids)) or '-'}; "
        f"chat template: {_templates(manifest.text)}",
    ]
    lines += [f"defaults   {line}" for line in manifest.defaults.lines]
    lines += _model("target", manifest.target, description.memory_of(manifest.target))
    for draft in manifest.drafts:
        lines += _model("draft", draft.model, description.memory_of(draft.model), _called(draft))
        if (reads := draft.model.reads) is not None:
            taps = ", ".join("what the target's head reads" if tap < 0 else str(tap) for tap in reads.taps)
            lines.append(f"           reads the target's hidden states: {taps}")
        lines += _vocabularies(draft)
    lines.append(_drafters(manifest) if manifest.drafts else NO_MODEL)
    lines += [
        _plans(manifest, engine) for engine in manifest.engines if any(plan.engine == engine for plan in manifest.plans)
    ]
    lines += [_proved(label, proof) for label, model in manifest.models.items() for proof in model.proofs]
    lines += _decisions(description)
    lines.append(f"files      {len(manifest.files)}, {_on_disk(manifest)}; inspect --json lists them")
    return "\n".join(lines)


def summary(description: Description) -> str:
    """What a user of the bundle needs first: what it is and takes, whether it is right, what its drafts give, and
    warnings. `render` has the rest.
    """
    manifest, fidelity = description.manifest, description.manifest.target.fidelity
    memory = sum(each["weights"] + each["cache"] for each in map(description.memory_of, manifest.models.values()))
    lines = [
        f"built      for {', '.join(manifest.engines)}; {_precision(manifest)}",
        f"size       {_on_disk(manifest)}; in memory {memory / 1e6:.1f} MB, with {_counted(manifest.longest, 'token')}",
        *(f"defaults   {line}" for line in manifest.defaults.lines),
        f"target     {_identity(manifest.target)}{_mixed(manifest.target)}",
    ]
    for draft in manifest.drafts:
        lines.append(f"draft      {_called(draft)}{_identity(draft.model)}{_mixed(draft.model)}")
        lines += [f"           {note}" for note in draft.model.notes if note.startswith(KEEPS)]
    lines += [] if manifest.drafts else [NO_MODEL]
    if description.policy is None:
        lines.append("           whether that pays depends on the host: sessions measure it, and draft only what pays")
    lines.append(f"proved     every graph agrees with its Hugging Face model{', rounded like it' if fidelity else ''}")
    if fidelity:
        lines.append(
            f"           {manifest.target.format} itself is {fidelity.divergence:.4f} nats from the exact target, with "
            f"the same top-1 token {fidelity.agreement:.1%}, perplexity {fidelity.loss:+.2%}"
        )
    for label, model in manifest.models.items():
        lines += [f"{label}: {note}" for note in model.notes if note.startswith((WARNING, "left out"))]
    return "\n".join(lines)


def _on_disk(manifest: Manifest) -> str:
    return f"{sum(entry.bytes for entry in manifest.files.values()) / 1e6:.1f} MB"


def _called(draft: DraftSpec) -> str:
    return "" if draft.name == "draft" else f"{draft.name}: "


def _identity(model: ModelSpec) -> str:
    return f"{model.architecture} from {model.source}: {model.num_parameters / 1e6:.1f} M parameters"


def _mixed(model: ModelSpec) -> str:
    """How many layers are in a higher format."""
    return next((f"; {note.partition(',')[0]}" for note in model.notes if MIXED in note), "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _templates(text: TextSpec) -> str:
    if text.tools_template:
        return "yes, and another for messages with tools" if text.chat_template else "for messages with tools only"
    return "yes" if text.chat_template else "no"


def _model(role: str, model: ModelSpec, memory: dict[str, int], called: str = "") -> list[str]:
    notes = (*_fidelity(model.fidelity), *(proof.summary for proof in model.layer_proofs), *model.notes)
    return [
        f"{role:<10} {called}{_identity(model)}, {_counted(len(model.layers), 'layer')}, vocabulary {model.vocab_size}",
        f"           weights {memory['weights'] / 1e6:.1f} MB{_stored(model, memory['weights'])}, cache "
        f"{memory['cache'] / 1e6:.1f} MB{_states(model.layers, memory)}; "
        f"checkpoint {model.checkpoint_sha256[:16]}",
        *(f"           {note}" for note in notes),
    ]


def _states(layers: Sequence[CacheLayer], memory: dict[str, int]) -> str:
    """Of a hybrid, how much of the cache its layers' states are."""
    count = sum(bool(layer.states) for layer in layers)
    return f", of it {memory['states'] / 1e6:.1f} MB of states in {_counted(count, 'layer')}" if count else ""


def _drafters(manifest: Manifest) -> str:
    """What --drafter takes, and what a session uses without it and without a policy."""
    drafts = manifest.draft_names
    usual = drafters_of(drafts[0])[1]
    if any(info_of(engine).on_gpu for engine in manifest.engines):
        usual += f", or {drafts[0]} where a GPU runs whole rounds"
    return f"drafters   {', '.join(all_drafters(drafts))}; the default without a policy: {usual}"


def _vocabularies(draft: DraftSpec) -> Iterator[str]:
    if (shared := draft.shared_vocabulary) is not None:
        why = "has another tokenizer and" if draft.model.reads is None else "reads the target's hidden states and"
        yield (
            f"vocabulary the draft {why} can propose {shared.shared_tokens} of the target's {shared.target_tokens} "
            f"tokens ({shared.overlap:.1%})"
        )


def _proved(label: str, proof: Proof) -> str:
    return (
        f"proved     {label} {proof.dialect} on {proof.engine}: {proof.rows} rows up to {proof.length} tokens, "
        f"{proof.measure} (allowed {proof.limit})"
    )


def _fidelity(one: Fidelity | None) -> Iterator[str]:
    if one is not None:
        yield (
            f"perplexity {one.perplexity:.3f}, {one.exact_perplexity:.3f} before quantization ({one.loss:+.2%}), "
            f"KL divergence {one.divergence:.4f} nats, same top-1 token {one.agreement:.1%}; {one.measured_on}"
        )


def _precision(manifest: Manifest) -> str:
    """The format in which weights are stored, and the one of the computation."""
    computed: str = manifest.contract.precision
    caches = manifest.contract.caches
    apart = f"keys and values {caches}, " if caches != computed else ""
    forms = {role: model.format for role, model in manifest.pair.items()}
    if all(form == "float" for form in forms.values()):
        return f"{apart}everything else {computed}" if apart else computed
    stored = ", ".join(f"{role} {computed if form == 'float' else form}" for role, form in forms.items())
    return f"weights: {stored}; {apart or 'caches and '}everything else {computed}"


def _stored(model: ModelSpec, size: int) -> str:
    if model.format != "float":
        return f" in {model.format}"
    # What bf16 or fp16 holds exactly is stored so for the kernels, which compute in fp32.
    return " in 16 bits, exactly" if "kernels" in model.graphs and size < 3 * model.num_parameters else ""


def _decisions(description: Description) -> list[str]:
    """The policy that sessions follow, and why."""
    policy = description.policy
    lines = []
    if policy is None:
        lines.append("policy     none: sessions adapt to measured costs; specexport calibrate finds out more")
    else:
        sampling = f"temperature {policy.temperature:g}, floor of p10 {policy.floor:g}"
        lines.append(f"policy     made {policy.made} for {policy.engine} alone, {sampling}")
        lines += [
            f"           {name}: {_entry(entry)}"
            for name, entry in [*policy.routes.items(), ("other requests", policy.default)]
        ]
    if not description.costs:
        lines.append(f"costs      none: {MEASURED}")
    for draft, costs in description.costs.items():
        lines.append(
            f"costs      {draft}: {costs.engine}, "
            f"{_counted(costs.threads, 'thread') if costs.threads else 'as many threads as it chooses'}, "
            f"{costs.host}, made {costs.made}"
        )
        for point in costs.points:
            rounds = " ".join(f"{time.median * 1e3:.2f}" for time in point.rounds)
            context = _counted(point.context, "token")
            lines.append(f"           with {context}, a round of 0, 1, ... draft tokens: {rounds} ms")
        if reason := _stale(description.manifest, costs):
            lines.append(f"           not used here: {reason}; {MEASURED}")
    return lines


def _stale(manifest: Manifest, costs: Costs) -> str | None:
    """Why they say nothing on this host, None where they do."""
    return stale(manifest, costs, costs.engine, costs.threads)


def _entry(entry: RoutePolicy) -> str:
    verdict, evidence = entry.verdict.upper(), entry.evidence
    if entry.mode == "fixed":
        k = entry.num_draft_tokens if entry.verdict != "off" else 0
        how = f"{_counted(k, 'draft token')} per round by {entry.drafter}" if k else "plain decoding"
    else:
        how = f"as many draft tokens by {entry.drafter} as pay" + (
            ", none until probes succeed" if entry.verdict == "off" else ""
        )
    if evidence is None:
        return f"{verdict}, {how}"
    bounded = evidence.high < UNBOUNDED
    between = f"{evidence.low:.2f} to {evidence.high:.2f}" if bounded else "interval unknown"
    return (
        f"{verdict}, {how}; "
        f"a = {evidence.acceptance_length:.2f} tokens per round, a* = {evidence.break_even:.2f}: "
        f"{evidence.speedup:.2f}x ({between}), p10 {evidence.p10:.2f}x, "
        f"{_counted(evidence.requests, 'request')}"
    )


def _plans(manifest: Manifest, engine: str) -> str:
    """The engine's plans, which were all made together."""
    plans = [plan for plan in manifest.plans if plan.engine == engine]
    size = sum(manifest.files[plan.file].bytes for plan in plans)
    first = plans[0]
    capabilities = (
        f"compute capability {', '.join(first.compute_capabilities)}"
        if first.compute_capabilities
        else "its usual GPUs"
    )
    kind = ", version-compatible" if first.version_compatible else ""
    return f"plans      {engine} {first.version}: {len(plans)}, {size / 1e6:.1f} MB, for {capabilities}{kind}"
