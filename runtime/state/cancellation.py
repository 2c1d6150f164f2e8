"""Stopping a request from outside."""

from __future__ import annotations


class Cancelled(Exception):  # noqa: N818 (no failure: the request ends with the finish reason `cancelled`)
    pass


class Cancellation:
    """Of one request: asked for by any thread, obeyed between prompt chunks and between rounds.

    checks: how often it was asked about; a number that stands still is a pass that hangs.
    """

    def __init__(self, requested: bool = False) -> None:
        self.requested = requested
        self.checks = 0

    def check(self) -> None:
        """Raises `Cancelled`."""
        self.checks += 1
        if self.requested:
            raise Cancelled
