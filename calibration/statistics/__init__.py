"""Intervals of ratios, and the types of results."""
