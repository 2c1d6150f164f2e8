"""Which draft of those that read the target a folder holds, by tensors and keys; those that are not built are refused.

An original EAGLE-3 checkpoint says in its config that it is a Llama, and drafts of several kinds share keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from ...errors import UnsupportedModelError

# Of EAGLE-3, the original form, also SpecForge's; ModelOpt's, which has other names for the same tensors; DeepSpec's;
# speculators'. Of DFlash and DSpark, its authors'; DeepSpec's; speculators'.
Format = Literal[
    "original", "modelopt", "deepspec", "speculators", "zlab", "deepspec-blocks", "speculators-blocks", "assistant"
]
INSTEAD = "use an EAGLE-3, DFlash or DSpark draft, or --draft mtp"
# What is refused, by what speculators and others call it, and what to use instead.
REFUSED = {
    "dflash2": ("a DFlash 2 draft", INSTEAD),
    "domino": ("a Domino draft", INSTEAD),
    "dflare": ("a DFlare draft", INSTEAD),
    "peagle": ("a P-EAGLE draft (parallel drafting)", INSTEAD),
    "medusa": ("a Medusa draft", INSTEAD),
    "eagle": ("an EAGLE draft of version 1 or 2", INSTEAD),
    "mtp": ("an MTP layer in a checkpoint of its own", "give a target that has it and --draft mtp"),
    "xpress": ("an XPress draft", INSTEAD),
    "latent": ("an EAGLE-3 draft with latent attention", INSTEAD),
    "gemma4": ("an EAGLE-3 draft of Gemma's layers", "use one of Llama's or Qwen3's layers"),
}
# Of these, by parts of the names of architectures.
CALLED = {
    "DFlash2": "dflash2",
    "Domino": "domino",
    "DFlare": "dflare",
    "PEagle": "peagle",
    "Medusa": "medusa",
    "Eagle3DeepseekV2": "latent",
    "Gemma4Eagle3": "gemma4",
}
FIRST = "layers.0."
MIDDLE = "midlayer."


def recognize(source: str, config: Mapping[str, Any], names: Collection[str]) -> Format | None:
    """The format of an EAGLE-3, DFlash or DSpark checkpoint, or an assistant's; None for what is none of these drafts.

    config: what config.json holds. names: of its tensors, none where it has only files of other formats. Raises
    `UnsupportedModelError` for a draft of another kind.
    """
    if config.get("model_type") in ("gemma4_assistant", "gemma4_unified_assistant"):
        return "assistant"
    if kind := _other_kind(config, names):
        what, instead = REFUSED[kind]
        raise UnsupportedModelError(f"{source} is {what}, which is not supported; {instead}", "draft")
    named = config.get("speculators_model_type")
    if named in ("eagle3", "dflash", "dspark"):
        return "speculators" if named == "eagle3" else "speculators-blocks"
    if named is not None:
        raise UnsupportedModelError(
            f"{source} is a {named} draft of speculators, which is not supported; {INSTEAD}", "draft"
        )
    architectures = _architectures(config)
    if "Qwen3Eagle3Model" in architectures.split():
        return "deepspec"
    if "DSpark" in architectures or "DFlash" in architectures or "dflash_config" in config or "markov_rank" in config:
        return "deepspec-blocks" if "DSparkModel" in architectures else "zlab"
    if not names:  # pickled weights: the caller refuses them
        return "original" if "draft_vocab_size" in config or "eagle_config" in config else None
    if "fc.weight" in names and f"{MIDDLE}hidden_norm.weight" in names:
        return "original"
    return "modelopt" if "fc.weight" in names and f"{FIRST}hidden_norm.weight" in names else None


def _other_kind(config: Mapping[str, Any], names: Collection[str]) -> str | None:
    """What is not built, as `REFUSED` calls it; None for EAGLE-3, and for what is no draft of these."""
    named, inner = config.get("speculators_model_type"), config.get("dflash_config")
    if named in REFUSED:
        return str(named)
    if kind := next((kind for part, kind in CALLED.items() if part in _architectures(config)), None):
        return kind
    if isinstance(inner, Mapping) and inner.get("projector_type") == "domino":
        return "domino"
    if "ptd_token_id" in config or "mask_hidden" in names:
        return "peagle"
    if "medusa_num_heads" in config:
        return "medusa"
    norms = "norm.weight" in names or any(name.endswith("hidden_norm.weight") for name in names)
    return "eagle" if "fc.weight" in names and f"{FIRST}mlp.up_proj.weight" in names and not norms else None


def _architectures(config: Mapping[str, Any]) -> str:
    """Names with spaces between."""
    named = config.get("architectures") or []
    return " ".join(map(str, named)) if isinstance(named, list) else str(named)
