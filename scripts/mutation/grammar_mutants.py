"""Faults in grammars and their limits."""

from __future__ import annotations

from .mutant import Mutant

CONSTRAINT, GUIDED, COMPILER = (f"runtime/grammar/{name}.py" for name in ("constraint", "guided", "compiler"))
RULES, DRAFTERS, CHUNKS = "runtime/sampling/rules.py", "runtime/drafting/drafters.py", "runtime/loop/chunks.py"
EITHER = "runtime/grammar/either.py"
TESTS = "tests/runtime/grammar"
SERVED = ("tests/serve/test_tools_or_schema.py",)
BOTH = ("tests/runtime/tools/test_lossless.py", *SERVED)
EXACT = (f"{TESTS}/test_lossless.py", f"{TESTS}/test_sessions.py")

GRAMMAR = (
    Mutant(
        "the mask behind what truncates",
        RULES,
        "return processed_distribution(row, self._parameters, top)",
        """found = processed_distribution(row, self._parameters, top)
        if self._constraint is not None:
            for token, _ in found.items():
                if not self._constraint.allows(token, self._drafted[:index]):
                    found.probs[found.tokens.searchsorted(token)] = 0.0
        return found

    def _row(self, logits: Row, drafted: Sequence[int]) -> Row:
        return self._adjusted(logits, drafted)""",
        EXACT,
    ),
    Mutant(
        "the grammar's state does not follow the draft",
        RULES,
        "row = self._row(known, self._drafted)",
        "row = self._row(known, [])",
        EXACT,
    ),
    Mutant(
        "every row masked by the round's first state",
        CONSTRAINT,
        "        state = self._state_after(drafted)\n        if state is None:\n            return logits\n",
        "        state = self._state_after([])\n        if state is None:\n            return logits\n",
        EXACT,
    ),
    Mutant(
        "the row behind the whole draft is not masked",
        RULES,
        "row = logits if self._constraint is None else self._constraint.mask(logits, drafted)",
        """free = self._constraint is None or len(drafted) == len(self._drafted) > 0
row = logits if free else self._constraint.mask(logits, drafted)""",
        EXACT,
    ),
    Mutant(
        "forced tokens stand unverified",
        RULES,
        "            try:\n                return verify(target, probs,",
        """            if not chance and self._constraint is not None:
                return size, target(size).draw(uniforms[-1])
            try:
                return verify(target, probs,""",
        EXACT,
    ),
    Mutant(
        "a draft's states are the output's own",
        CONSTRAINT,
        "        state = state.copy()\n",
        "",
        EXACT,
    ),
    Mutant(
        "stop tokens anywhere",
        CONSTRAINT,
        "row[stops] = logits[stops] if state.accepting else -np.inf",
        "row[stops] = logits[stops]",
        EXACT,
    ),
    Mutant(
        "greedy takes every argmax",
        RULES,
        "math.isfinite(row[token]) and self._constraint.allows(token, drafted)",
        "math.isfinite(row[token])",
        EXACT,
    ),
    Mutant(
        "lookups are not cut",
        DRAFTERS,
        "matched = matched[: self._rule.legal(matched)]",
        "pass",
        ("tests/runtime/drafting", *EXACT),
    ),
    Mutant(
        "the end of the grammar is missed",
        CHUNKS,
        "return self._matcher.done",
        "return False",
        EXACT,
    ),
    Mutant(
        "a matcher in error is the end of the text",
        GUIDED,
        "if matcher.is_error():",
        "if False:",
        (f"{TESTS}/test_sessions.py", f"{TESTS}/test_compiler.py"),
        within="GuidedMatcher._ask",
    ),
    Mutant(
        "a grammar ends with its lexer",
        GUIDED,
        "self._source",
        "None",
        (f"{TESTS}/test_compiler.py",),
        within="GuidedMatcher._copy",
    ),
    Mutant(
        "one token is accepted where another is forced",
        GUIDED,
        "            return token == forced[0]\n",
        "            pass\n",
        (f"{TESTS}/test_compiler.py",),
    ),
    Mutant(
        "a compiler that hangs is waited for",
        COMPILER,
        "0 if self._late is not None else DEADLINE",
        "DEADLINE",
        (f"{TESTS}/test_compiler.py",),
    ),
    Mutant(
        "a compiler that hung once is never waited for again",
        COMPILER,
        "                    self._late = None\n",
        "",
        (f"{TESTS}/test_compiler.py",),
    ),
    Mutant(
        "a request's time with its grammar is the grammar's of all requests",
        COMPILER,
        "return made.begin()",
        "return made.copy()",
        ("tests/serve/test_grammar_bounds.py",),
    ),
    Mutant(
        "a schema's own options",
        COMPILER,
        "LLMatcher.grammar_from_json_schema(grammar.text, overrides=options)",
        "LLMatcher.grammar_from_json_schema(grammar.text, defaults=options)",
        (f"{TESTS}/test_compiler.py",),
    ),
    Mutant(
        "text up to an end goes on behind it",
        "runtime/grammar/lark.py",
        'f"{name}_end[lazy]: TEXT {json.dumps(end)}"',
        'f"{name}_end: TEXT {json.dumps(end)}"',
        ("tests/runtime/tools/test_lossless.py",),
    ),
    Mutant(
        "an opening of thoughts that other tokens spell is an answer's",
        "runtime/grammar/thinking.py",
        "f\"opened[lazy]: {' | '.join(json.dumps(lead + thinking.opening) for lead in leads)}\"",
        "f\"opened: {' | '.join(json.dumps(lead + thinking.opening) for lead in leads)}\"",
        (f"{TESTS}/test_thinking.py",),
    ),
    Mutant(
        "thoughts may be all there is of an answer to a schema",
        "runtime/grammar/thinking.py",
        'lark.until("thought", thinking.end, then, atoms, thinking.free, thinking.may_stop)',
        'lark.until("thought", thinking.end, then, atoms, thinking.free, True)',
        (f"{TESTS}/test_thinking.py",),
    ),
    Mutant(
        "a strict tool is relaxed",
        "serve/wire/calls.py",
        "[place for place in self.places if place not in self.strict]",
        "[place for place in self.places]",
        ("tests/serve/test_tools.py",),
    ),
    Mutant(
        "of two grammars only the first counts",
        EITHER,
        "            for other in others:\n                first = first | other\n",
        "",
        BOTH,
    ),
    Mutant(
        "what one of two grammars forces is forced",
        EITHER,
        "        for other in others:\n            size = min(size, len(other))\n",
        "        for other in others[:0]:\n            size = min(size, len(other))\n",
        ("tests/runtime/tools/test_bounds.py",),
    ),
    Mutant(
        "copies of two grammars advance together",
        EITHER,
        "EitherMatcher([way.copy() for way in self._ways], self._begun)",
        "EitherMatcher(self._ways, self._begun)",
        BOTH,
    ),
    Mutant(
        "an answer may begin as a call does",
        COMPILER,
        "            self._check_apart(grammar.answer, grammar.mark)\n",
        "",
        SERVED,
    ),
    Mutant(
        "a string in an answer is read as a call",
        "serve/wire/calls.py",
        "form = replace(form, leads=True)",
        "form = replace(form)",
        SERVED,
    ),
    Mutant(
        "thoughts alone are an answer in the form",
        "serve/routes/generate.py",
        "may_stop=not (calls.demanded or calls.answers)",
        "may_stop=not calls.demanded",
        SERVED,
    ),
)
