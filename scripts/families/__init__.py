"""Tries every family of causal language models in transformers as a tiny random model: `docs/models.md`."""
