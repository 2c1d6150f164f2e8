#!/bin/sh
# An EAGLE-3.1 head for SmolLM2-135M-Instruct, trained on its answers to prompts about the Python library and installed
# packages (docs/drafts.md). Two hours of one core; interrupted, the same command resumes its answers.
#     examples/train_smollm2_head.sh SMOL smol.bundle HEAD      SMOL as of `python scripts/smollm2.py SMOL`; its bundle
set -eu
here=$(dirname "$0")
python "$here/train_smollm2_draft/library_prompts.py" --training --packages --per-route 600 --output "$3.prompts"
cat "$3".prompts/*.jsonl > "$3.prompts.jsonl"
specexport tune "$2" --kind eagle3 --target "$1" --prompts "$3.prompts.jsonl" --answers 1 --general 0 --epochs 3 \
    --vocabulary 6144 --output "$3"
