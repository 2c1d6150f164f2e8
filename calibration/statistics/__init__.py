"""Intervals, sample sizes, and the types of results."""
