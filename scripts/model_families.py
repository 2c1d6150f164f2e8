"""Which families of models can be built? Tries a tiny random model of each, and writes docs/models.md."""

from __future__ import annotations

import sys

from families.command import main  # type: ignore[import-not-found]  # this folder is on the path when it runs

if __name__ == "__main__":
    sys.exit(main())
