"""Runs on the clock, and what is recorded of them."""
