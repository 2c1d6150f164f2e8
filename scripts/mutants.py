"""Do the tests find the faults that they are for? Plants one fault at a time and says which set of tests catches it."""

from __future__ import annotations

import sys

from mutation.command import main  # type: ignore[import-not-found]  # this folder is on the path when it runs

if __name__ == "__main__":
    sys.exit(main())
