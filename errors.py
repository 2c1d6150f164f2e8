"""Errors of specexport, one line each: what was found, what was expected, what to do.

SpecExportError
├── ParameterError          an argument out of range (also a ValueError)
│   ├── PromptError         an empty prompt, an unknown token id
│   │   ├── LongPromptError     one that leaves no room for an answer
│   │   └── ToolsError          tools for a model whose template cannot take them
│   └── GrammarError        a grammar that is wrong, too complex, or leaves no token
├── CheckpointError         a folder or hub id that is no usable checkpoint
│   └── UnsupportedModelError   a model whose graph cannot keep the contract
├── PairError               a target and a draft that cannot work together
├── OutputError             an output that exists, a disk that is full
├── ProofError              compiled graphs that do not give the reference's logits
├── BundleError             a bundle that is damaged, newer, or was edited
├── EngineError             an engine that fails, or that this host lacks
│   └── MissingPackageError an optional package that is not installed
├── SessionBusyError        a second request while a stream is open
├── SessionClosedError      a request to a session that was closed
└── QueueError              a request that a server's queue does not take, or no longer keeps
"""

from __future__ import annotations

from unicodedata import category

TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class SpecExportError(Exception):
    """Root of every error that a user can cause or meet."""

    def __str__(self) -> str:
        """One line, whatever it quotes of a file: what breaks lines or turns them round is written as an escape."""
        told = super().__str__()
        return (
            told if told.isprintable() else "".join(_escaped(letter) if _breaks(letter) else letter for letter in told)
        )


def _breaks(letter: str) -> bool:
    """Control characters, halves of surrogate pairs, line and paragraph separators, and overrides of direction."""
    return category(letter) in ("Cc", "Cs", "Zl", "Zp") or letter in TURNS


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


class ParameterError(SpecExportError, ValueError):
    pass


class PromptError(ParameterError):
    pass


class LongPromptError(PromptError):
    """tokens: the prompt's. capacity: the bundle's. of_messages: whether the prompt was a conversation."""

    def __init__(self, message: str, tokens: int = 0, capacity: int = 0, of_messages: bool = False) -> None:
        super().__init__(message)
        self.tokens, self.capacity, self.of_messages = tokens, capacity, of_messages


class ToolsError(PromptError):
    pass


class GrammarError(ParameterError):
    """code: `invalid_schema`, `schema_too_complex`, `grammar_busy` while another one compiles for too long, or
    `grammar_failed` in mid-stream.
    """

    def __init__(self, message: str, code: str = "invalid_schema") -> None:
        super().__init__(message)
        self.code = code


class CheckpointError(SpecExportError):
    pass


class UnsupportedModelError(CheckpointError):
    pass


class PairError(SpecExportError):
    pass


class OutputError(SpecExportError):
    pass


class ProofError(SpecExportError):
    pass


class BundleError(SpecExportError):
    pass


class EngineError(SpecExportError):
    pass


class MissingPackageError(EngineError):
    """extra: of this package, which brings the missing one. remedy: in place of that, where pip is the wrong way."""

    def __init__(self, package: str, extra: str, remedy: str = "") -> None:
        remedy = remedy or f"pip install 'specexport[{extra}]'"
        super().__init__(f"the package {package} is not installed; install it with: {remedy}")


class SessionBusyError(SpecExportError):
    pass


class SessionClosedError(SpecExportError):
    pass


class QueueError(SpecExportError):
    """code: `queue_full`, `too_many_requests` of a key, `queue_timeout` or `shutting_down`. retry_after: seconds."""

    def __init__(self, code: str, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after
