"""Do the tests see what they are for? Plants one fault at a time and tells which set catches it."""

from __future__ import annotations

import sys

from mutation.command import main  # type: ignore[import-not-found]  # this folder is on the path when it runs

if __name__ == "__main__":
    sys.exit(main())
