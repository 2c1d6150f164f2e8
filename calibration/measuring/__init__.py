"""Timed runs, and what is recorded of them."""
