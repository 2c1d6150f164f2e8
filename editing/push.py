"""Upload a bundle to the Hugging Face hub, from which `specexport.load("org/name")` loads it."""

from __future__ import annotations

from pathlib import Path

from ..bundle import MANIFEST, Bundle
from ..engines.catalogue import ENGINES
from ..errors import MissingPackageError, OutputError
from ..runtime.hub import ON_HUB, SUFFIX, hub_reason, name_of

CARD = "README.md"


def push(bundle: Bundle, repository: str, private: bool = False) -> str:
    """Upload every file of the manifest, and a model card where the repository has none; returns the address.

    What was measured on this host stays here. private: a new repository is, whatever the organization's setting. Files
    of an earlier bundle stay in the repository. Raises `OutputError` for an invalid name, and where the hub refuses;
    `MissingPackageError` without huggingface_hub.
    """
    match = ON_HUB.fullmatch(repository)
    if match is None or match["revision"] or repository.endswith(SUFFIX):  # which `load` takes for a folder
        reason = f"is not a repository name that bundles load by; give one like org/name, without {SUFFIX}"
        raise OutputError(f"{repository!r} {reason}", "repository")
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError:
        raise MissingPackageError("huggingface_hub", "hub") from None
    api = HfApi(library_name="specexport")
    try:
        address = str(api.create_repo(repository, private=private or None, exist_ok=True))
        if not api.file_exists(repository, CARD):
            card = _card(bundle, repository).encode()
            api.upload_file(path_or_fileobj=card, path_in_repo=CARD, repo_id=repository)
        files = [*bundle.manifest.files, MANIFEST]
        api.upload_folder(repo_id=repository, folder_path=bundle.root, allow_patterns=files)
    except Exception as error:  # those of its HTTP library come through
        raise OutputError(
            f"{repository} could not be uploaded: {hub_reason(error)}; if you are not logged in: hf auth login"
        ) from None
    return address


def _card(bundle: Bundle, repository: str) -> str:
    manifest = bundle.manifest
    sources = [model.source for model in manifest.models.values()]
    on_hub = [ON_HUB.fullmatch(source) is not None and not Path(source).exists() for source in sources]
    bases = "".join(f"- {source}\n" for source, known in zip(sources, on_hub, strict=True) if known)
    made_of = [name_of(source) for source in sources]
    engine = manifest.engines[0]
    extra = (engine in ENGINES and ENGINES[engine].extra) or engine
    kernels = "./kernels " if "kernels" in manifest.target.graphs else ""
    drafts = f", with drafts from {' and '.join(made_of[1:])}" if manifest.drafts else ""
    return f"""---
library_name: specexport
tags: [speculative-decoding, onnx]
{f"base_model:{chr(10)}{bases}" if bases else ""}---

# {repository}

{made_of[0]}{drafts}, compiled by specexport for lossless speculative decoding. Engines: {", ".join(manifest.engines)}.

    pip install {kernels}'.[cli,chat,{extra},hub]'      # in a checkout of specexport
    specexport generate {repository} --prompt "..."
"""
