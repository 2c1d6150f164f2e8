"""One message to aider, which sends its edit format and examples with every request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import MODEL, TOOLS

Path("shapes.py").write_text("def area(side):\n    return side * side\n", encoding="utf-8")
aider = Path(sys.executable).with_name("aider")
server = ["--model", f"openai/{MODEL}", "--openai-api-base", TOOLS, "--openai-api-key", "none"]
quiet = ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
task = ["--edit-format", "diff", "--no-stream", "--message", sys.argv[1], "shapes.py"]
subprocess.run([aider, *server, *quiet, *task], timeout=300, check=False)
