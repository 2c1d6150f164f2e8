"""Mutants: faults that the tests must catch, planted one at a time."""
