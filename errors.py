"""Errors of specexport, one line each: what was found, what was expected, what to do.

SpecExportError
├── ParameterError          an argument out of range (also a ValueError)
│   ├── PromptError         an empty prompt, an unknown token id
│   │   ├── LongPromptError     one that leaves no room for an answer
│   │   └── ToolsError          tools for a model whose template cannot take them
│   └── GrammarError        a grammar that is wrong, too complex, or leaves no token
├── CheckpointError         a folder or hub id that is not a usable checkpoint
│   └── UnsupportedModelError   a model that cannot be exported with the contract's inputs and outputs
├── PairError               a target and a draft that cannot work together
├── OutputError             an output that exists, a disk that is full
├── ProofError              compiled graphs whose logits differ from the reference
├── BundleError             a bundle that is damaged, too old or too new, or was edited
├── EngineError             an engine that fails, or that this host cannot run
│   └── MissingPackageError an optional package that is not installed
├── SessionBusyError        a second request while a stream is open
├── SessionClosedError      a request to a closed session
└── QueueError              a request that a server's queue refuses or drops
"""

from __future__ import annotations

from unicodedata import category

TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class SpecExportError(Exception):
    """Base class of all errors that a user can cause or see."""

    def __str__(self) -> str:
        """The message in one line: characters that break lines or change the direction of text are escaped, since
        messages quote files.
        """
        text = super().__str__()
        return (
            text if text.isprintable() else "".join(_escaped(letter) if _breaks(letter) else letter for letter in text)
        )


def _breaks(letter: str) -> bool:
    """Whether `letter` is a control character, a surrogate, a line or paragraph separator, or a direction override."""
    return category(letter) in ("Cc", "Cs", "Zl", "Zp") or letter in TURNS


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


class ParameterError(SpecExportError, ValueError):
    pass


class PromptError(ParameterError):
    pass


class LongPromptError(PromptError):
    """tokens: length of the prompt. capacity: the bundle's, in tokens. of_messages: whether it was a conversation."""

    def __init__(self, message: str, tokens: int = 0, capacity: int = 0, of_messages: bool = False) -> None:
        super().__init__(message)
        self.tokens, self.capacity, self.of_messages = tokens, capacity, of_messages


class ToolsError(PromptError):
    pass


class GrammarError(ParameterError):
    """code: `invalid_schema`, `schema_too_complex`, `grammar_busy` if another grammar takes too long to compile, or
    `grammar_failed` in the middle of a stream.
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
    """extra: the extra of specexport that installs the package. remedy: the command to show instead of `pip install`,
    where pip cannot install it.
    """

    def __init__(self, package: str, extra: str, remedy: str = "") -> None:
        remedy = remedy or f"pip install 'specexport[{extra}]'"
        super().__init__(f"the package {package} is not installed; install it with: {remedy}")


class SessionBusyError(SpecExportError):
    pass


class SessionClosedError(SpecExportError):
    pass


class QueueError(SpecExportError):
    """code: `queue_full`, `too_many_requests` (of a key), `queue_timeout` or `shutting_down`. retry_after: seconds."""

    def __init__(self, code: str, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after
