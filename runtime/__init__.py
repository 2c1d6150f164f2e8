"""The lean runtime: needs numpy, tokenizers and one engine library, nothing else."""
