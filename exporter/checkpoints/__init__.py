"""Hugging Face checkpoints: resolved, checked, paired."""
