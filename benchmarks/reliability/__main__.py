"""Fault-injection tests of servers, bundles and builds.

    python benchmarks/reliability demo.bundle                       # all parts
    python benchmarks/reliability demo.bundle --part soak --minutes 60

Writes a report in Markdown, and the figures as JSON next to it. A part that runs alone replaces only its own figures.
docs/reliability.md describes the parts. Exits with 1 if something was found.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from reliability.command import main

if __name__ == "__main__":
    sys.exit(main())
