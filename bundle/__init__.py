"""The bundle: a folder with graphs, tokenizer and a manifest that says what each graph takes and gives.

    manifest.json   graphs/   graphs/rules/   engines/<engine>/   reference/   tokenizer/

The manifest lists every file with its size and SHA-256. It is written last, into a temporary sibling folder
that is then renamed, so a bundle either is whole or is not there.
"""

from .contract import COUNTS, ELEMENT_BYTES, PRECISIONS, ROLES, CacheLayer, Contract, Precision, Role, State
from .digests import list_files, sha256
from .manifest import (
    FORMATS,
    MANIFEST,
    SCHEMA_VERSION,
    DraftVocabulary,
    Family,
    Fidelity,
    FileEntry,
    Format,
    Manifest,
    ModelSpec,
    Plan,
    RuleName,
    RuleSpec,
    SharedVocabulary,
    TextSpec,
    write_manifest,
)
from .opening import Bundle
from .proofs import LayerProof, Proof

__all__ = [
    "COUNTS",
    "ELEMENT_BYTES",
    "FORMATS",
    "MANIFEST",
    "PRECISIONS",
    "ROLES",
    "SCHEMA_VERSION",
    "Bundle",
    "CacheLayer",
    "Contract",
    "DraftVocabulary",
    "Family",
    "Fidelity",
    "FileEntry",
    "Format",
    "LayerProof",
    "Manifest",
    "ModelSpec",
    "Plan",
    "Precision",
    "Proof",
    "Role",
    "RuleName",
    "RuleSpec",
    "SharedVocabulary",
    "State",
    "TextSpec",
    "list_files",
    "sha256",
    "write_manifest",
]
