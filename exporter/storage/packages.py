"""Versions of the packages whose behaviour ends up in a bundle."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "numpy",
    "ml_dtypes",
    "gguf",
)


def package_versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
