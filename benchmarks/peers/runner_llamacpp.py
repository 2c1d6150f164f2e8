"""llama.cpp: converts the checkpoints to Q8_0 with its own script, then runs the program of llamacpp.cpp.

The program replaces the process, so no Python runs during the measurement.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from locations import SOURCE, llamacpp
from protocol import converted, parse_arguments

# The converter identifies tokenizers by a digest of how they tokenize a text, and refuses unknown ones. Requests are
# token ids, so it does not matter which pre-tokenizer is written into the file.
CONVERT = """
import sys
root = sys.argv.pop(1)
sys.path[:0] = [root, root + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def convert(source: Path, checkpoint: str, precision: str, folder: Path) -> None:
    command = [
        sys.executable,
        "-c",
        CONVERT,
        source,
        checkpoint,
        "--outtype",
        precision,
        "--outfile",
        folder / "model.gguf",
    ]
    subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> None:
    arguments = parse_arguments(__doc__)
    parts = llamacpp()

    def path(checkpoint: str) -> str:
        label = f"llamacpp-{arguments.precision}"
        folder = converted(
            arguments.work,
            checkpoint,
            label,
            lambda folder: convert(parts.source, checkpoint, arguments.precision, folder),
        )
        return str(folder / "model.gguf")

    draft = path(arguments.draft) if arguments.draft else "-"
    name, version = f"llama.cpp {arguments.precision.upper()}", SOURCE.split("==")[1]
    os.execv(
        parts.program,
        [
            str(parts.program),
            path(arguments.target),
            draft,
            str(arguments.threads),
            str(arguments.capacity),
            name,
            version,
        ],
    )


if __name__ == "__main__":
    main()
