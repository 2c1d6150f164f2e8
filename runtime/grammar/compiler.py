"""Grammars to matchers, for one tokenizer: within a deadline, on a stack that deep grammars do not overflow."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...bundle import Bundle
from ...errors import GrammarError, MissingPackageError
from .constraint import Matcher
from .either import EitherMatcher
from .grammar import Grammar, value
from .guided import GuidedMatcher, one_line
from .lark import as_regex, without_atoms
from .thinking import after_thoughts

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

DEADLINE = 2.0  # seconds
STACK = 256 << 20  # bytes; only the used part takes memory
KEPT = 64
KEPT_FAILURES = 256  # of at most 32 KiB each
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,8}"
# A step of the parser that takes longer than about 10 ms ends in an error.
LIMITS: dict[str, Any] = {
    "step_max_items": 5000,
    "step_lexer_fuel": 20_000,
    "initial_lexer_fuel": 100_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 50_000,
    "max_items_in_row": 500,
    "verbose_errors": False,
}
# The error for a reference to what the schema does not hold.
ELSEWHERE = re.compile(r"Resource '(?:json-schema:///)?(.*)' is not present in a registry")
PLACED = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*)", re.DOTALL)
# The error for a regex: the library quotes the grammar that it makes of it, and then says what is wrong.
IN_REGEX = re.compile(r'[^"]*?: invalid regex .*?\(in regex\): (?:regex parse error:.*\nerror: )?(.*)', re.DOTALL)
SHOWN = 100
_STACK_SIZE = threading.Lock()  # `threading.stack_size` belongs to the whole process
T = TypeVar("T")


class GrammarCompiler:
    """May be called from any thread; one grammar compiles at a time. The last `KEPT` are kept, and the errors of the
    last `KEPT_FAILURES` that are invalid.
    """

    def __init__(self, tokenizer: Callable[[], str], vocab_size: int, stop_tokens: Collection[int]) -> None:
        """tokenizer: returns the tokenizer.json, called once. stop_tokens: the model's own."""
        self._text, self._vocab_size, self._stop_tokens = tokenizer, vocab_size, stop_tokens
        self._compiled: OrderedDict[Grammar, GuidedMatcher] = OrderedDict()
        self._failed: OrderedDict[Grammar, GrammarError] = OrderedDict()
        self._lock = threading.Lock()
        self._busy = threading.Semaphore()  # held by the thread that compiles, even after the caller's deadline
        self._late: float | None = None  # since when nobody waits for it, and so nothing else compiles

    @classmethod
    def of(cls, bundle: Bundle, tokenizer: Callable[[], str]) -> GrammarCompiler:
        return cls(tokenizer, bundle.manifest.target.vocab_size, bundle.manifest.text.stop_token_ids)

    def prepare(self) -> None:
        """Load llguidance and make its tables for the tokenizer, half a second for 128k tokens; otherwise done at first
        use.

        Raises `MissingPackageError` without llguidance.
        """
        with self._lock:
            _ = self._tokenizer

    def late_for(self) -> float:
        """How many seconds a grammar has been compiling beyond the deadline, 0 for none. No other is compiled
        meanwhile.
        """
        late = self._late
        return 0.0 if late is None else monotonic() - late

    @overload
    def compile(self, grammar: Grammar) -> Matcher: ...
    @overload
    def compile(self, grammar: Grammar | None) -> Matcher | None: ...
    def compile(self, grammar: Grammar | None) -> Matcher | None:
        """A matcher at the start of the text, None without a grammar. Raises `GrammarError`, `MissingPackageError`."""
        if grammar is None:
            return None
        made = self._made(grammar)
        with self._lock:
            return made.begin()

    def hold(self, grammar: Grammar) -> Compiled:
        """The grammar, which stays compiled while the returned object is referenced. Raises like `compile`."""
        return Compiled(*value(grammar), compiler=self, made=self._made(grammar))

    def _made(self, grammar: Grammar) -> GuidedMatcher | EitherMatcher:
        if isinstance(grammar, Compiled) and grammar.compiler is self:
            return grammar.made
        if grammar.answer is not None:
            answer = self._one(grammar.answer)
            self._check_apart(grammar.answer, grammar.mark)
            return EitherMatcher([self._one(replace(grammar, answer=None, mark="")), answer])
        return self._one(grammar)

    def _check_apart(self, answer: Grammar, mark: str) -> None:
        """Raises `GrammarError` if a text of `answer` may begin with `mark`."""
        alone = self._one(replace(answer, thinking=None))
        with self._lock:
            begun, tokens = alone.begin(), self._tokenizer.tokenize_str(mark)
        if begun.fits(tokens):  # without the lock: where the lexer is full, the grammar is compiled again
            reason = f"it may begin with {mark[:SHOWN]!r}, as tool calls do; change it, or leave the tools out"
            raise GrammarError(reason, kind=answer.kind)

    def _one(self, grammar: Grammar) -> GuidedMatcher:
        self.prepare()
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known
            failure = self._failed.get(grammar)
        if failure is not None:
            raise _failed(failure)
        made = self._in_time(grammar.kind, partial(self._make_or_note, grammar))
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return made

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise MissingPackageError("llguidance", "grammar") from None
        stops = [token for token in self._stop_tokens if 0 <= token < self._vocab_size]
        try:
            return LLTokenizer(without_atoms(self._text()), n_vocab=self._vocab_size, eos_token=stops or None)
        except ValueError as error:
            reason = one_line(str(error))
            raise GrammarError(f"this bundle's tokenizer cannot be used with grammars: {reason}") from None

    def _in_time(self, kind: str, task: Callable[[], T]) -> T:
        """Compiles in a thread, which continues in the background if it takes too long: nothing can stop it."""
        if not self._busy.acquire(timeout=0 if self._late is not None else DEADLINE):
            reason = f"another grammar has been compiling for more than {DEADLINE:g} s; try again later"
            raise GrammarError(reason, code="grammar_busy")
        made: list[T] = []
        failed: list[BaseException] = []
        finished = threading.Event()

        def work() -> None:
            try:
                made.append(task())
            except BaseException as error:  # raised in the calling thread
                failed.append(error)
            finally:
                with self._lock:
                    self._late = None
                    finished.set()
                self._busy.release()

        thread = threading.Thread(target=work, name="specexport-grammar", daemon=True)
        try:
            _start_with_stack(thread)
        except BaseException:
            self._busy.release()
            raise
        if not finished.wait(DEADLINE):
            with self._lock:
                self._late = None if finished.is_set() else monotonic()
            raise _too_slow(kind)
        if failed:
            raise failed[0]
        return made[0]

    def _make_or_note(self, grammar: Grammar) -> GuidedMatcher:
        """Called by the thread that compiles. Taking too long is an error; only its own CPU time counts."""
        start, failure = thread_time(), None
        try:
            made = self._make(grammar)
        except GrammarError as error:
            failure = _failed(error)  # which is kept: a traceback would keep llguidance's matcher
        if thread_time() - start > DEADLINE:
            failure = _too_slow(grammar.kind)
        if failure is None:
            return made
        with self._lock:
            self._failed[Grammar(*value(grammar))] = failure
            while len(self._failed) > KEPT_FAILURES:
                self._failed.popitem(last=False)
        raise _failed(failure)

    def _make(self, grammar: Grammar) -> GuidedMatcher:
        made = GuidedMatcher(self._matcher(grammar), self._vocab_size, self._tokenizer.eos_tokens)
        try:
            made.allowed()  # the first mask may take as long
        except GrammarError as error:
            raise GrammarError(str(error), code="schema_too_complex", kind=grammar.kind) from None
        if made.done:  # a request has at least one token
            reason = "it matches only the empty text; let it match at least one character"
            raise GrammarError(reason, kind=grammar.kind)
        plain = Grammar(*value(grammar))  # one that is held would hold what is made of it
        made.renew_by(partial(self._in_time, grammar.kind, partial(self._matcher, plain)))
        return made

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        """llguidance's, at the start of the text. Raises `GrammarError`."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**LIMITS)
        try:
            matcher = LLMatcher(self._tokenizer, _definition(grammar), log_level=0, limits=limits)
        except ValueError as error:  # for JSON that Rust rejects, such as half a surrogate pair
            raise GrammarError(one_line(str(error)), kind=grammar.kind) from None
        if matcher.is_error():
            raise _invalid(grammar.kind, matcher.get_error())
        return matcher


@dataclass(frozen=True, eq=False)
class Compiled(Grammar):
    """A grammar, and what a compiler made of it. Pickled, it is the grammar alone."""

    compiler: GrammarCompiler = field(kw_only=True, repr=False)
    made: GuidedMatcher | EitherMatcher = field(kw_only=True, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Grammar, value(self)


def _invalid(kind: str, error: str) -> GrammarError:
    """The error for llguidance's, whose text is all that it gives, without the parts that only its authors understand.
    A grammar of tools is not the user's text, so its line is a fact for the caller and not for a reader.
    """
    in_regex = IN_REGEX.match(error) if kind == "regex" else None
    message = one_line(in_regex[1] if in_regex else error)
    elsewhere, placed = ELSEWHERE.match(message), PLACED.match(message)
    if elsewhere is not None:
        message = (
            f"it refers to {elsewhere[1][:SHOWN]!r}, and nothing is fetched; put that into its $defs and refer to "
            "'#/$defs/NAME'"
        )
    elif placed is not None and kind == "tools":
        message = placed[2]
    return GrammarError(message, kind=kind, line=placed and int(placed[1]))


def _too_slow(kind: str) -> GrammarError:
    reason = f"it takes more than {DEADLINE:g} s to compile; simplify it"
    return GrammarError(reason, code="schema_too_complex", kind=kind)


def _failed(error: GrammarError) -> GrammarError:
    """The error anew, as one that is raised again would keep its tracebacks."""
    return GrammarError(error.reason, code=error.code, kind=error.kind, line=error.line)


def _definition(grammar: Grammar) -> str:
    answer = _answer(grammar)
    if grammar.thinking is None:
        return answer
    lark = grammar.kind in ("grammar", "tools")
    return after_thoughts(grammar.thinking, {"lark_grammar": answer} if lark else json.loads(answer)["grammars"][0])


def _answer(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    if grammar.kind == "schema":
        # Overrides the schema's own options; a lenient compiler drops what it does not know.
        options: Any = {"lenient": grammar.lenient, "coerce_one_of": False, "whitespace_flexible": grammar.whitespace}
        if grammar.whitespace:
            options["whitespace_pattern"] = WHITESPACE
        return LLMatcher.grammar_from_json_schema(grammar.text, overrides=options)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(map(as_regex, json.loads(grammar.text))))
    return LLMatcher.grammar_from_lark(grammar.text)


def _start_with_stack(thread: threading.Thread) -> None:
    with _STACK_SIZE:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
