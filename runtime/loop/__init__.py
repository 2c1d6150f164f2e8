"""The speculative loop: draft, verify, accept, roll back."""
