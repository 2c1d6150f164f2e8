"""What a server, a bundle and a build survive.

    python benchmarks/reliability demo.bundle                       # all parts
    python benchmarks/reliability demo.bundle --part soak --minutes 60

Writes a page with plots and, beside it, the figures as JSON. Parts that are run alone replace their own figures there
and leave the others'. What each does is in docs/reliability.md. Exits with 1 where something was found.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from reliability.command import main

if __name__ == "__main__":
    sys.exit(main())
