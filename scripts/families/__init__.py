"""Every family of causal language models of transformers, tried as a tiny random model: `docs/models.md`."""
