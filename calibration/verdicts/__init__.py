"""Verdicts: does speculation pay on a route, and with which drafter and k."""
