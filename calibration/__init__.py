"""Measurements for decisions: what a pass costs, and whether speculation pays."""
