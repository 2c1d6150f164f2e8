"""Hugging Face checkpoints: found, checked, paired."""
