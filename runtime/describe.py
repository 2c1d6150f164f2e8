"""What a bundle holds, as data and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..bundle import Bundle, Defaults, DraftVocabulary, Fidelity, LayerProof, ModelSpec, Proof
from .auto_precision import read_precision, table_lines
from .policy.checks import read_policy, stale
from .policy.cost_model import COSTS, Costs
from .policy.files import read_by_draft
from .policy.routes import UNBOUNDED


def describe(bundle: Bundle) -> dict[str, Any]:
    """The manifest, with the memory that a session needs, in bytes, and what calibration decided.

    memory: of each model, its weights and its cache, and of the cache the states of hybrids. costs: by draft.

    Raises `BundleError` for a policy.json or costs.json that is damaged or of another bundle.
    """
    manifest = bundle.manifest

    def memory_of(model: ModelSpec) -> dict[str, int]:
        return {
            "weights": manifest.files[model.weights].bytes,
            "cache": model.cache_bytes(manifest.contract),
            "states": model.state_bytes(manifest.contract),
        }

    described = asdict(manifest) | {
        "memory": {label: memory_of(model) for label, model in manifest.models.items()},
        "widths": list(manifest.contract.widths),
        "spans": list(manifest.contract.spans),
    }
    for row, draft in zip(described["drafts"], manifest.drafts, strict=True):
        if draft.shared_vocabulary is not None:
            row["shared_vocabulary"]["overlap"] = draft.shared_vocabulary.overlap
    policy, costs = read_policy(bundle), read_by_draft(bundle, Costs, COSTS)
    described["longest"] = manifest.longest
    table = read_precision(bundle)
    described["auto"] = None if table is None else asdict(table)
    described["policy"] = None if policy is None else asdict(policy)
    described["costs"] = {
        name: asdict(one) | {"stale": stale(one, one.engine, one.threads)} for name, one in costs.items()
    }
    return described


def render(description: dict[str, Any]) -> str:
    contract = description["contract"]
    spare = contract["capacity"] - description["longest"]
    room = f" ({contract['capacity']} less one that quantized passes keep free)" if spare else ""
    lines = [
        f"built      {description['created']}  {description['command']}",
        f"engines    {', '.join(description['engines'])}; {_precision(description)}",
        f"sequence   up to {_counted(description['longest'], 'token')}{room}, "
        f"{_counted(contract['max_draft_tokens'], 'draft token')} per round, "
        f"prompt chunks of {contract['prompt_chunk']}, widths {' '.join(map(str, description['widths']))}, "
        f"spans {' '.join(map(str, description['spans']))}",
        f"stops at   token {', '.join(map(str, description['text']['stop_token_ids'])) or '-'}; "
        f"chat template: {_templates(description['text'])}",
    ]
    lines += [f"defaults   {line}" for line in Defaults(**description["defaults"]).lines]
    drafts, memory = description["drafts"], list(description["memory"].values())
    lines += _model("target", description["target"], memory[0])
    for number, (draft, own) in enumerate(zip(drafts, memory[1:], strict=True)):
        lines += _model("draft", draft["model"], own, "" if draft["name"] == "draft" else f"{draft['name']}: ")
        if number:
            lines.append(f"           requests choose it with --drafter {draft['name']}")
        lines += _vocabularies(draft)
    if not drafts:
        lines.append("draft      none: drafts are looked up in the text")
    lines += [
        _plans(description, engine)
        for engine in description["engines"]
        if any(p["engine"] == engine for p in description["plans"])
    ]
    models = (description["target"], *(draft["model"] for draft in drafts))
    for label, model in zip(description["memory"], models, strict=True):
        lines += [_proved(label, Proof(**proof)) for proof in model["proofs"]]
    lines += table_lines(description["auto"]) if description["auto"] is not None else []
    lines += _decisions(description["policy"], description["costs"])
    files = description["files"]
    size = sum(entry["bytes"] for entry in files.values())
    lines.append(f"files      {len(files)}, {size / 1e6:.1f} MB; list them with --files")
    return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def render_files(description: dict[str, Any]) -> str:
    """Beginnings of the files' digests, their sizes in bytes, and the packages that the build ran with."""
    lines = [f"{entry['sha256'][:16]}  {entry['bytes']:>12,}  {name}" for name, entry in description["files"].items()]
    lines.append("packages   " + ", ".join(f"{name} {number}" for name, number in description["packages"].items()))
    return "\n".join(lines)


def _templates(text: dict[str, Any]) -> str:
    if text["tools_template"]:
        return "yes, and another for messages with tools" if text["chat_template"] else "for messages with tools only"
    return "yes" if text["chat_template"] else "no"


def _model(role: str, model: dict[str, Any], memory: dict[str, int], called: str = "") -> list[str]:
    notes = (*_fidelity(model["fidelity"]), *_layers(model["layer_proofs"]), *model["notes"])
    return [
        f"{role:<10} {called}{model['architecture']} from {model['source']}: "
        f"{model['num_parameters'] / 1e6:.1f} M parameters, "
        f"{_counted(len(model['layers']), 'layer')}, vocabulary {model['vocab_size']}",
        f"           weights {memory['weights'] / 1e6:.1f} MB{_stored(model['format'])}, cache "
        f"{memory['cache'] / 1e6:.1f} MB{_states(model['layers'], memory)}; "
        f"checkpoint {model['checkpoint_sha256'][:16]}",
        *(f"           {note}" for note in notes),
    ]


def _states(layers: Sequence[dict[str, Any]], memory: dict[str, int]) -> str:
    """Of a hybrid, how much of the cache its layers' states are."""
    count = sum(bool(layer["states"]) for layer in layers)
    return f", of it {memory['states'] / 1e6:.1f} MB of states in {_counted(count, 'layer')}" if count else ""


def _vocabularies(draft: dict[str, Any]) -> Iterator[str]:
    if (shared := draft["shared_vocabulary"]) is not None:
        yield (
            f"vocabulary the draft has another tokenizer and can propose {shared['shared_tokens']} of the target's "
            f"{shared['target_tokens']} tokens ({shared['overlap']:.1%})"
        )
    if (reduced := draft["reduced_vocabulary"]) is not None:
        yield f"vocabulary the draft can propose {DraftVocabulary(**reduced).summary}"


def _proved(label: str, proof: Proof) -> str:
    return (
        f"proved     {label} {proof.dialect} on {proof.engine}: {proof.rows} rows up to {proof.length} tokens, "
        f"{proof.measure} (allowed {proof.limit})"
    )


def _fidelity(measured: dict[str, Any] | None) -> Iterator[str]:
    if measured is not None:
        found = Fidelity(**measured)
        yield (
            f"perplexity {found.perplexity:.3f}, {found.exact_perplexity:.3f} before quantization ({found.loss:+.2%}), "
            f"KL divergence {found.divergence:.4f} nats, same top-1 token {found.agreement:.1%}; {found.measured_on}"
        )


def _layers(proofs: list[dict[str, Any]]) -> Iterator[str]:
    yield from (LayerProof(**proof).summary for proof in proofs)


def _precision(description: dict[str, Any]) -> str:
    """The format in which weights are stored, and the one of the computation."""
    computed: str = description["contract"]["precision"]
    forms = {"target": description["target"]["format"]}
    if description["drafts"]:
        forms["draft"] = description["drafts"][0]["model"]["format"]
    if all(form == "float" for form in forms.values()):
        return computed
    stored = ", ".join(f"{role} {computed if form == 'float' else form}" for role, form in forms.items())
    return f"weights: {stored}; caches and everything else {computed}"


def _stored(form: str) -> str:
    return "" if form == "float" else f" in {form}"


def _decisions(policy: dict[str, Any] | None, costs_by_draft: dict[str, Any]) -> list[str]:
    """The policy that sessions follow, and why."""
    lines = []
    if policy is None:
        lines.append("policy     none: sessions adapt to measured costs; specexport calibrate finds out more")
    else:
        sampling = f"temperature {policy['temperature']:g}, floor of p10 {policy['floor']:g}"
        lines.append(f"policy     made {policy['made']} on {policy['engine']}, {sampling}")
        lines += [
            f"           {name}: {_entry(entry)}"
            for name, entry in [*policy["routes"].items(), ("other requests", policy["default"])]
        ]
    if not costs_by_draft:
        without = "routes that adapt draft their fixed numbers; specexport calibrate measures them"
        if policy is None:
            without = "a host's first session measures them, about half a second, and keeps them in the user's cache"
        lines.append(f"costs      none: {without}")
    for draft, costs in costs_by_draft.items():
        lines.append(
            f"costs      {draft}: {costs['engine']}, "
            f"{_counted(costs['threads'], 'thread') if costs['threads'] else 'its own number of threads'}, "
            f"{costs['host']}, made {costs['made']}"
        )
        for point in costs["points"]:
            rounds = " ".join(f"{time['median'] * 1e3:.2f}" for time in point["rounds"])
            context = _counted(point["context"], "token")
            lines.append(f"           with {context}, a round of 0, 1, ... draft tokens: {rounds} ms")
        if costs["stale"]:
            lines.append(f"           not used here: {costs['stale']}; run specexport calibrate on this host")
    return lines


def _entry(entry: dict[str, Any]) -> str:
    verdict, evidence = entry["verdict"].upper(), entry["evidence"]
    if entry["mode"] == "fixed":
        k = entry["num_draft_tokens"] if entry["verdict"] != "off" else 0
        how = f"{_counted(k, 'draft token')} per round by {entry['drafter']}" if k else "plain decoding"
    else:
        how = f"as many draft tokens by {entry['drafter']} as pay" + (
            ", none until probes succeed" if entry["verdict"] == "off" else ""
        )
    if evidence is None:
        return f"{verdict}, {how}"
    bounded = evidence["high"] < UNBOUNDED
    between = f"{evidence['low']:.2f} to {evidence['high']:.2f}" if bounded else "interval unknown"
    return (
        f"{verdict}, {how}; "
        f"a = {evidence['acceptance_length']:.2f} tokens per round, a* = {evidence['break_even']:.2f}: "
        f"{evidence['speedup']:.2f}x ({between}), p10 {evidence['p10']:.2f}x, "
        f"{_counted(evidence['requests'], 'request')}"
    )


def _plans(description: dict[str, Any], engine: str) -> str:
    """The engine's plans, which were all made together."""
    plans = [plan for plan in description["plans"] if plan["engine"] == engine]
    size = sum(description["files"][plan["file"]]["bytes"] for plan in plans)
    first = plans[0]
    capabilities = (
        f"compute capability {', '.join(first['compute_capabilities'])}"
        if first["compute_capabilities"]
        else "its usual GPUs"
    )
    kinds = [name.replace("_", "-") for name in ("hardware_compatible", "version_compatible") if first[name]]
    return ", ".join(
        [f"plans      {engine} {first['version']}: {len(plans)}, {size / 1e6:.1f} MB, for {capabilities}", *kinds]
    )
