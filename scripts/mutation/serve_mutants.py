"""Faults in the server: the queue, disconnects and cancellation, responses, access."""

from __future__ import annotations

from .mutant import Mutant

ENGINE = "serve/engine/"
IN_PROCESS = ("tests/serve/test_async_session.py", "tests/serve/test_fair_queue.py")
OVER_SOCKETS = ("tests/serve/test_overload.py", "tests/serve/test_shutdown.py")
ANSWERS = ("tests/serve/test_answers.py",)
BOUNDS = ("tests/serve/test_grammar_bounds.py",)
OPERATION = ("tests/serve/test_operation.py",)
PAGE = ("tests/serve/test_page.py", "tests/serve/test_page_in_browser.py")
VARIABLES = ("tests/serve/test_template_variables.py",)
CLIENTS, OF_CLIENTS = "benchmarks/clients/", ("tests/test_clients.py",)

SERVE = (
    Mutant(
        "keys take no turns",
        f"{ENGINE}fair_queue.py",
        "                self._waiting.move_to_end(key)",
        "                pass",
        IN_PROCESS,
    ),
    Mutant(
        "a key's share has no bound",
        f"{ENGINE}fair_queue.py",
        "len(own) - is_next >= self._most_per_key",
        "len(own) - is_next >= self._most",
        IN_PROCESS,
    ),
    Mutant(
        "a burst loses the place of the one that is about to run",
        f"{ENGINE}thread.py",
        "idle=self._running is None, again=again)",
        "idle=False, again=again)",
        IN_PROCESS,
    ),
    Mutant(
        "a list of prompts is refused half-way",
        "serve/routes/work.py",
        "sessions, again = self.service.sessions, index > 0",
        "sessions, again = self.service.sessions, False",
        ("tests/serve/test_overload.py",),
    ),
    Mutant(
        "each letter of a single text is an API key",
        "serve/checks.py",
        "if isinstance(value, str | bytes):",
        "if isinstance(value, bytes):",
        ("tests/serve/test_settings.py",),
    ),
    Mutant(
        "a request may set what the template is rendered with",
        "serve/wire/variables.py",
        "own = next(filter(is_own, given), None)",
        "own = None",
        VARIABLES,
    ),
    Mutant(
        "thoughts are looked for without the template's variables",
        "runtime/text/encode.py",
        "find_thinking(self._template.setting(variables), ",
        "find_thinking(self._template, ",
        VARIABLES,
    ),
    Mutant(
        "who leaves the queue stays in it",
        f"{ENGINE}job.py",
        "if self._withdraw(self):",
        "if False:",
        (*IN_PROCESS, *OVER_SOCKETS),
    ),
    Mutant(
        "one that was cancelled before it had a stream runs on",
        f"{ENGINE}thread.py",
        "if job.cancelled:",
        "if False:",
        (*IN_PROCESS, *OVER_SOCKETS),
    ),
    Mutant(
        "a job that was cancelled in the queue is waited for",
        f"{ENGINE}job.py",
        "            self._events.appendleft(event)",
        "            pass",
        OVER_SOCKETS,
    ),
    Mutant(
        "a bug in a request ends the engine thread",
        f"{ENGINE}thread.py",
        "except BaseException as error:  # a bug ends its request, not the thread",
        "except SystemExit as error:",
        IN_PROCESS,
    ),
    Mutant(
        "a drain takes new work",
        f"{ENGINE}thread.py",
        "if self._draining:",
        "if False:",
        (*IN_PROCESS, *OVER_SOCKETS),
    ),
    Mutant(
        "keys share cached rows",
        f"{ENGINE}async_session.py",
        "        if key:  # else",
        "        if False:  # else",
        (*IN_PROCESS, *OPERATION),
    ),
    Mutant(
        "a client's leaving is not noticed",
        "serve/http/exchange.py",
        "            self.gone = True\n            leave()",
        "            self.gone = True",
        OVER_SOCKETS,
    ),
    Mutant(
        "a reader that takes nothing is waited for",
        "serve/http/exchange.py",
        "            stuck = True\n            if task is not None:\n                task.cancel()",
        "            stuck = True",
        ("tests/serve/test_app.py",),
    ),
    Mutant(
        "any key opens",
        "serve/http/guard.py",
        "if not any(known) and not free:",
        "if not given and not free:",
        OPERATION,
    ),
    Mutant(
        "an origin that begins like an allowed one is allowed",
        "serve/http/guard.py",
        "if not own and origin not in self._settings.cors_origins:",
        "if not own and not origin.startswith(tuple(self._settings.cors_origins) or '?'):",
        OPERATION,
    ),
    Mutant(
        "every host name is answered",
        "serve/http/guard.py",
        "if hosts is not None and _name(host) not in hosts:",
        "if hosts is not None and not host:",
        OPERATION,
    ),
    Mutant(
        "the page's conversation takes the place of its main part",
        "serve/page/index.html",
        "<main>",
        '<main role="log">',
        PAGE,
    ),
    Mutant(
        "the page's settings come before its prompt",
        "serve/page/index.html",
        '  <form id="composer"',
        '  <a href="#settings" id="settings-link" tabindex="1">Settings</a><form id="composer"',
        PAGE,
    ),
    Mutant(
        "the empty plot keeps its place",
        "serve/page/index.html",
        'aria-label="Speed of the last answer" hidden>',
        'aria-label="Speed of the last answer">',
        PAGE,
    ),
    Mutant(
        "rejected guesses are pale",
        "serve/page/app.css",
        ".rejected { color: var(--wrong); }",
        ".rejected { color: var(--wrong); opacity: .8; }",
        PAGE,
    ),
    Mutant(
        "the page's small print is pale",
        "serve/page/app.css",
        "--quiet: #57606a;",
        "--quiet: #7d858f;",
        PAGE,
    ),
    Mutant(
        "rejected guesses are shown unasked",
        "serve/page/app.css",
        "body:not(.show-rejected) .text .rejected { display: none; }",
        "body.hide-rejected .text .rejected { display: none; }",
        PAGE,
    ),
    Mutant(
        "log-probabilities of a text that a stop string cut go out",
        "serve/routes/output.py",
        'if by_token or chunk.finish_reason == "length":',
        "if chunk.finish_reason is not None:",
        ANSWERS,
    ),
    Mutant(
        "a stop token has an entry",
        "serve/routes/output.py",
        "            self._held.pop()  # a stop token has no text, and no entry",
        "            pass",
        ANSWERS,
    ),
    Mutant(
        "usage comes unasked",
        "serve/routes/shapes.py",
        "usage=None if self.with_usage else msgspec.UNSET",
        "usage=None",
        ANSWERS,
    ),
    Mutant(
        "accepted draft tokens are counted twice",
        "serve/metrics.py",
        "self._accepted.labels(*labels).inc(row.accepted)",
        "self._accepted.labels(*labels).inc(2 * row.accepted)",
        OPERATION,
    ),
    Mutant(
        "a server's own error is called a refusal of the client",
        f"{CLIENTS}harness.py",
        "400 <= status < 500:",
        "400 <= status:",
        OF_CLIENTS,
    ),
    Mutant(
        "a wrong refusal is called a refusal, and not a failed check",
        f"{CLIENTS}harness.py",
        "while error is not None and not isinstance(error, UnexpectedError):",
        "while error is not None:",
        OF_CLIENTS,
    ),
    Mutant(
        "a server that never notices who leaves passes",
        f"{CLIENTS}harness.py",
        'expect(kind, "the server did not notice that the client left")',
        "return",
        OF_CLIENTS,
    ),
    Mutant(
        "a client's script that dies half-way passes",
        f"{CLIENTS}results.py",
        "if code != 0 or not found:",
        "if not found:",
        OF_CLIENTS,
    ),
    Mutant(
        "an environment keeps the packages that it was made with",
        f"{CLIENTS}environments.py",
        """ or (folder / "ready").read_text() != wanted:""",
        ":",
        OF_CLIENTS,
    ),
    Mutant(
        "a client's script talks to the caller's own account",
        f"{CLIENTS}servers.py",
        " if not name.startswith(own)}",
        "}",
        OF_CLIENTS,
    ),
    Mutant(
        "masks may take as long as they like",
        f"{ENGINE}thread.py",
        "if chunk.statistics.grammar_seconds > self._grammar_timeout:",
        "if False:",
        BOUNDS,
    ),
    Mutant(
        "a compiler that hangs is the client's fault",
        "serve/wire/errors.py",
        'case GrammarError(code="grammar_busy"):',
        'case GrammarError(code="never"):',
        BOUNDS,
    ),
    Mutant(
        "keys that come twice in JSON are taken",
        "serve/wire/body.py",
        "if len(found) < len(pairs):",
        "if len(found) > len(pairs):",
        ("tests/serve/test_refusals.py",),
    ),
)
