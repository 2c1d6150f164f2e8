"""Faults that the tests must see, planted one at a time."""
