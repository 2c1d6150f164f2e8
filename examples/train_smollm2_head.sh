#!/bin/sh
# An EAGLE-3.1 head for SmolLM2-135M-Instruct, trained on its answers to prompts about the Python library and installed
# packages (docs/drafts.md). Two hours; interrupted, the same command resumes its answers.
#     examples/train_smollm2_head.sh SMOL smol.bundle HEAD      SMOL as of `python scripts/smollm2.py SMOL`; its bundle
set -eu
python "$(dirname "$0")/library_prompts.py" --training --packages --per-route 900 --output "$3.prompts"
cat "$3".prompts/*.jsonl > "$3.prompts.jsonl"
specexport tune "$2" --kind eagle3 --target "$1" --prompts "$3.prompts.jsonl" --answers 1 --general 0 --epochs 4 \
    --vocabulary 4096 --inner 320 --output "$3"
# Shipped without the target's own rows, which a build takes from the target: 6 MB instead of 11.
python - "$3" <<'EOF'
import sys

from safetensors.torch import load_file, save_file

file = sys.argv[1] + "/model.safetensors"
kept = {name: tensor for name, tensor in load_file(file).items() if name not in ("lm_head.weight", "t2d")}
save_file(kept, file, {"format": "pt"})
EOF
