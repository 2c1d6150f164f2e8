"""Errors of specexport, one line each: what was found, what was expected, what to do.

Programs read the type, the `code` and the `field`, never the message, whose wording may change.

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
    """Base class of all errors that a user can cause or see.

    code: what went wrong, a stable name; the class's own unless a more specific one is given (docs/embedding.md lists
    all). field: the argument, option, key or part of a request that is at fault; None if there is none.
    """

    code = "error"
    field: str | None = None

    def __init__(self, message: str = "", field: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field or self.field
        self.code = code or self.code

    def __str__(self) -> str:
        """The message in one line: characters that break lines or change the direction of text are escaped, since
        messages quote files.
        """
        text = super().__str__()
        return (
            text if text.isprintable() else "".join(_escaped(letter) if _breaks(letter) else letter for letter in text)
        )


def reason_of(error: Exception) -> str:
    """The first line of what an import raised. Raises `KeyboardInterrupt` again, of which pybind11 makes an
    `ImportError`.
    """
    if isinstance(error.__cause__, KeyboardInterrupt):
        raise error.__cause__
    return str(error).partition("\n")[0]


def _breaks(letter: str) -> bool:
    """Whether `letter` is a control character, a surrogate, a line or paragraph separator, or a direction override."""
    return category(letter) in ("Cc", "Cs", "Zl", "Zp") or letter in TURNS


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


class ParameterError(SpecExportError, ValueError):
    code = "invalid_value"


class PromptError(ParameterError):
    """field: `prompt`, `messages` or `prediction`."""


class LongPromptError(PromptError):
    """tokens: length of the prompt. capacity: the bundle's, in tokens."""

    code = "context_length_exceeded"

    def __init__(self, message: str, field: str | None = "prompt", *, tokens: int = 0, capacity: int = 0) -> None:
        super().__init__(message, field)
        self.tokens, self.capacity = tokens, capacity


class ToolsError(PromptError):
    code, field = "unsupported_parameter", "tools"


class GrammarError(ParameterError):
    """kind: `schema`, `tools` and so on, if the grammar is wrong; the message then begins with it. reason: the rest of
    the message. line: the line of the grammar's text, from 1, at which the compiler stopped; None if it is not known.
    """

    code = "invalid_schema"
    field: str | None = "grammar"

    def __init__(
        self,
        reason: str,
        field: str | None = "grammar",
        *,
        code: str | None = None,
        kind: str = "",
        line: int | None = None,
    ) -> None:
        super().__init__(f"invalid {kind}: {reason}" if kind else reason, field, code=code)
        self.reason, self.kind, self.line = reason, kind, line


class CheckpointError(SpecExportError):
    code = "invalid_checkpoint"


class UnsupportedModelError(CheckpointError):
    code = "unsupported_model"


class PairError(SpecExportError):
    code = "pair_mismatch"


class OutputError(SpecExportError):
    code = "output_failed"


class ProofError(SpecExportError):
    code = "proof_failed"


class BundleError(SpecExportError):
    """field: the wrong key of a JSON file, after the file's name, such as `manifest.json.contract.capacity`."""

    code = "invalid_bundle"


class EngineError(SpecExportError):
    code = "engine_error"


class MissingPackageError(EngineError):
    """package: what is missing. extra: the extra of specexport that installs it. remedy: the command to show instead of
    `pip install`, if pip cannot install it.
    """

    code = "missing_package"

    def __init__(self, package: str, extra: str, remedy: str = "") -> None:
        remedy = remedy or f"pip install 'specexport[{extra}]'"
        super().__init__(f"the package {package} is not installed; install it with: {remedy}")
        self.package, self.extra = package, extra


class SessionBusyError(SpecExportError):
    code = "session_busy"


class SessionClosedError(SpecExportError):
    code = "session_closed"


class QueueError(SpecExportError):
    """code: `queue_full`, `too_many_requests` (of a key), `queue_timeout` or `shutting_down`. retry_after: seconds."""

    code = "queue_full"

    def __init__(self, code: str, message: str, retry_after: int) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after
