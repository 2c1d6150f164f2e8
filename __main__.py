"""The command `specexport`, also as `python -m specexport`: says what to install if the extra `cli` is missing."""

from __future__ import annotations

import os
from importlib.util import find_spec


def main() -> None:
    """Run the command line. Raises `SystemExit`, with a one-line message if click or rich is not installed."""
    if missing := [name for name in ("click", "rich") if find_spec(name) is None]:
        raise SystemExit(
            f"Error: the command specexport needs {' and '.join(missing)}; install with: pip install 'specexport[cli]'"
        )
    # torch's threads spin while they wait for each other. Where other processes need the cores, that made an int8 build
    # three times slower (docs/benchmarks.md). OpenMP reads this once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from .cli import main as command
        from .cli.group import use_utf8

        use_utf8()
        command(prog_name="specexport")
    except KeyboardInterrupt:  # before the command began
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
