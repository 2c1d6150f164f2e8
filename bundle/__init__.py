"""The bundle: a folder with graphs, a tokenizer, and a manifest that describes the inputs and outputs of each graph.

    manifest.json   graphs/   graphs/rules/   engines/<engine>/   reference/   tokenizer/   drafts/<name>-<digest>/

The manifest lists every file with its size and SHA-256. It is written last, into a temporary folder next to the final
path, which is then renamed, so a bundle is either complete or absent.
"""



from .contract import COUNTS
from .contract import ELEMENT_BYTES
from .contract import PRECISIONS
from .contract import CacheLayer
from .contract import Contract
from .contract import Precision
from .contract import State
from .contract import is_cache
from .defaults import Defaults
from .drafts import RESERVED
from .drafts import DraftSpec
from .drafts import DraftVocabulary
from .drafts import SharedVocabulary
from .drafts import check_name
from .files import list_files
from .files import sha256
from .manifest import MANIFEST
from .manifest import OLDEST_SCHEMA
from .manifest import SCHEMA_VERSION
from .manifest import FileEntry
from .manifest import Manifest
from .manifest import Plan
from .manifest import RuleName
from .manifest import RuleSpec
from .manifest import TextSpec
from .manifest import manifest_text
from .manifest import write_manifest
from .models import FORMATS
from .models import Family
from .models import Fidelity
from .models import Format
from .models import ModelSpec
from .models import Role
from .opening import Bundle
from .proofs import LayerProof
from .proofs import Proof
from .drafts import ALIAS
from .drafts import NO_DRAFT


__all__ = [
    "ALIAS",
    "COUNTS",
    "ELEMENT_BYTES",
    "FORMATS",
    "MANIFEST",
    "NO_DRAFT",
    "OLDEST_SCHEMA",
    "PRECISIONS",
    "RESERVED",
    "SCHEMA_VERSION",
    "Bundle",
    "CacheLayer",
    "Contract",
    "Defaults",
    "DraftSpec",
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
    "check_name",
    "is_cache",
    "list_files",
    "manifest_text",
    "sha256",
    "write_manifest",
]
