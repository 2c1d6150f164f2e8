"""Stopping a request from outside."""

from __future__ import annotations


class Cancelled(Exception):  # noqa: N818 (no failure: the request ends with the finish reason `cancelled`)
    pass


class Cancellation:
    """Cancellation of one request: requested by any thread, obeyed between prompt chunks and between rounds.

    checks: how often it was checked; if that number stands still, a pass hangs.
    """

    def __init__(self, requested: bool = False) -> None:
        self.requested = requested
        self.checks = 0

    def check(self) -> None:
        """Raises `Cancelled`."""
        self.checks += 1
        if self.requested:
            raise Cancelled
