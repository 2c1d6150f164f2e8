"""Stopping a request from outside."""

from __future__ import annotations


class Cancelled(Exception):  # noqa: N818 (no failure: the request ends with the finish reason `cancelled`)
    pass


class Cancellation:
    """Of one request: asked for by any thread, obeyed between prompt chunks and between rounds."""

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raises `Cancelled`."""
        if self.requested:
            raise Cancelled
