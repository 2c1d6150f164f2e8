"""The systems that can be compared, and the commands that start them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from locations import base, environment

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """One system. environment: None for the interpreter that runs the driver."""

    environment: str | None
    script: str
    precision: str

    def command(self, target: Path, draft: Path | None, threads: int, capacity: int) -> list[str]:
        """The command that starts its runner. Raises `FileNotFoundError` if its environment does not exist."""
        interpreter = environment(self.environment) / "bin/python" if self.environment else Path(sys.executable)
        if not interpreter.exists():
            raise FileNotFoundError(
                f"{interpreter} is missing; run: python benchmarks/peers/setup.py {self.environment}"
            )
        options = [
            "--threads",
            str(threads),
            "--capacity",
            str(capacity),
            "--work",
            str(base() / "models"),
            "--precision",
            self.precision,
        ]
        pair = ["--target", str(target), *(["--draft", str(draft)] if draft else [])]
        return [str(interpreter), str(HERE / self.script), *pair, *options]


SPECEXPORT = Peer(None, "runner_specexport.py", "")
PEERS = {
    "transformers": Peer(None, "runner_transformers.py", "fp32"),
    "openvino": Peer("openvino", "runner_openvino.py", "int8"),
    "genai-int8": Peer("genai", "runner_genai.py", "int8"),
    "genai-int4": Peer("genai", "runner_genai.py", "int4"),
    "llamacpp": Peer("llamacpp", "runner_llamacpp.py", "q8_0"),
}
