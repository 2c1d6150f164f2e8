"""Exported graphs against the reference."""
