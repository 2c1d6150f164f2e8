"""Is speculative output the target's own, family by family? Many random requests to a tiny random pair of each."""

from __future__ import annotations

import sys

from families.compare import main  # type: ignore[import-not-found]  # this folder is on the path when it runs

if __name__ == "__main__":
    sys.exit(main())
