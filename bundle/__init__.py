"""The bundle: a folder with graphs, a tokenizer, and a manifest that describes the inputs and outputs of each graph.

    manifest.json   graphs/   engines/<engine>/   reference/   tokenizer/   drafts/<name>-<digest>/

The manifest lists every file with its size and SHA-256. It is written last, into a temporary folder next to the final
path, which is then renamed, so a bundle is either complete or absent.
"""

from .contract import (
    CONFIDENCE,
    COUNTS,
    ELEMENT_BYTES,
    FEEDBACK,
    FUSED,
    HIDDEN,
    PRECISIONS,
    CacheLayer,
    Contract,
    Precision,
    State,
    is_cache,
)
from .drafts import ALIAS, NO_DRAFT, RESERVED, DraftSpec, SharedVocabulary, check_name
from .files import list_files, sha256
from .manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    Defaults,
    FileEntry,
    Manifest,
    Plan,
    TextSpec,
    manifest_text,
    write_manifest,
)
from .models import (
    FORMATS,
    KEEPS,
    LAST,
    MIXED,
    MOST_SLOTS,
    WARNING,
    Family,
    Fidelity,
    Format,
    HiddenDraftKind,
    LayerProof,
    ModelSpec,
    Proof,
    Reads,
    Role,
)
from .opening import Bundle
