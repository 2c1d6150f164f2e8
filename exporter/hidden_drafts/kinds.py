"""Which draft of those that read the target a folder holds, by tensors and keys; those that are not built are refused.

An original EAGLE-3 checkpoint says in its config that it is a Llama, and drafts of several kinds share keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ...bundle import HiddenDraftKind
from ...errors import UnsupportedModelError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# The original form, also SpecForge's; ModelOpt's, which has other names for the same tensors; DeepSpec's; speculators'.
Format = Literal["original", "modelopt", "deepspec", "speculators"]
# Of DFlash and DSpark: its authors'; DeepSpec's; speculators'.
BlockFormat = Literal["zlab", "deepspec-blocks", "speculators-blocks"]


INSTEAD = "use an EAGLE-3, DFlash or DSpark draft, or --draft mtp"
# What is refused, by what speculators and others call it.
REFUSED = {
    "dflash2": f"a DFlash 2 draft, which is not supported; {INSTEAD}",
    "domino": f"a Domino draft, which is not supported; {INSTEAD}",
    "dflare": f"a DFlare draft, which is not supported; {INSTEAD}",
    "peagle": f"a P-EAGLE draft (parallel drafting), which is not supported; {INSTEAD}",
    "medusa": f"a Medusa draft, which is not supported; {INSTEAD}",
    "eagle": f"an EAGLE draft of version 1 or 2, which is not supported; {INSTEAD}",
    "mtp": "an MTP layer in a checkpoint of its own, which is not read; give a target that has it and --draft mtp",
    "xpress": f"an XPress draft, which is not supported; {INSTEAD}",
    "latent": f"an EAGLE-3 draft with latent attention, which is not supported; {INSTEAD}",
    "gemma4": "an EAGLE-3 draft of Gemma's layers, which is not supported; use one of Llama's or Qwen3's layers",
}
FIRST = "layers.0."
MIDDLE = "midlayer."


def is_block(format: Format | BlockFormat) -> TypeIs[BlockFormat]:
    return format in ("zlab", "deepspec-blocks", "speculators-blocks")


def is_assistant(config: Mapping[str, Any]) -> bool:
    """Whether it is a draft that attends to the target's caches."""
    return config.get("model_type") in ("gemma4_assistant", "gemma4_unified_assistant")


def kind_of(format: Format | BlockFormat, names: Collection[str]) -> HiddenDraftKind:
    """names: of its tensors."""
    if not is_block(format):
        return "eagle3"
    return "dspark" if any(name.startswith(("markov_head.", "confidence_head.")) for name in names) else "dflash"


def recognize(source: str, config: Mapping[str, Any], names: Collection[str]) -> Format | BlockFormat | None:
    """The format of an EAGLE-3, DFlash or DSpark checkpoint; None for what is none of these drafts.

    config: what config.json holds. names: of its tensors, none where it has only files of other formats. Raises
    `UnsupportedModelError` for a draft of another kind.
    """
    if kind := _other_kind(config, names):
        raise UnsupportedModelError(f"{source} is {REFUSED[kind]}", "draft")
    named = config.get("speculators_model_type")
    if named in ("eagle3", "dflash", "dspark"):
        return "speculators" if named == "eagle3" else "speculators-blocks"
    if named is not None:
        raise UnsupportedModelError(
            f"{source} is a {named} draft of speculators, which is not supported; {INSTEAD}", "draft"
        )
    if "Qwen3Eagle3Model" in _architectures(config):
        return "deepspec"
    architectures = " ".join(_architectures(config))
    if "DSpark" in architectures or "DFlash" in architectures or "dflash_config" in config or "markov_rank" in config:
        return "deepspec-blocks" if "DSparkModel" in architectures else "zlab"
    if not names:  # pickled weights: the caller refuses them
        return "original" if "draft_vocab_size" in config or "eagle_config" in config else None
    if "fc.weight" in names and f"{MIDDLE}hidden_norm.weight" in names:
        return "original"
    return "modelopt" if "fc.weight" in names and f"{FIRST}hidden_norm.weight" in names else None


def _other_kind(config: Mapping[str, Any], names: Collection[str]) -> str | None:
    """What is not built, as `REFUSED` calls it; None for EAGLE-3, and for what is no draft of these."""
    architectures, named = " ".join(_architectures(config)), config.get("speculators_model_type")
    if named in REFUSED:
        return str(named)
    if "DFlash2" in architectures:
        return "dflash2"
    inner = config.get("dflash_config")
    if "Domino" in architectures or (isinstance(inner, Mapping) and inner.get("projector_type") == "domino"):
        return "domino"
    if "DFlare" in architectures:
        return "dflare"
    if "PEagle" in architectures or "ptd_token_id" in config or "mask_hidden" in names:
        return "peagle"
    if "Medusa" in architectures or "medusa_num_heads" in config:
        return "medusa"
    if "Eagle3DeepseekV2" in architectures:
        return "latent"
    if "Gemma4Eagle3" in architectures:
        return "gemma4"
    norms = "norm.weight" in names or any(name.endswith("hidden_norm.weight") for name in names)
    return "eagle" if "fc.weight" in names and f"{FIRST}mlp.up_proj.weight" in names and not norms else None


def _architectures(config: Mapping[str, Any]) -> list[str]:
    named = config.get("architectures") or []
    return [str(name) for name in named] if isinstance(named, list) else [str(named)]
