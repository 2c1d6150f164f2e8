"""Faults in what a server takes from requests and says in answers: fields, values, names, log-probabilities."""

from __future__ import annotations

from .mutant import Mutant

OTHERS = ("tests/serve/test_other_fields.py",)
LENIENT = ("tests/serve/test_lenient_values.py",)
LOGPROBS = ("tests/serve/test_logprobs.py",)
CLOSING = ("tests/runtime/tools/test_tool.py",)
STOPS = ("tests/runtime/text/test_detokenizer.py",)
NAMES = ("tests/serve/test_names.py",)
CONSTRAINED = ("tests/serve/test_constrained.py",)
FIELDS, TRANSLATE = "serve/wire/fields.py", "serve/wire/translate.py"

ERRORS, STRUCTS = "serve/wire/errors.py", "serve/wire/invalid_structs.py"
MAPPED, REFUSALS = ("tests/serve/test_mapped_errors.py",), ("tests/serve/test_refusals.py",)

CONTINUED = ("tests/serve/test_continued.py",)
SCORES, ANSWERS = ("tests/serve/test_scores.py",), ("tests/serve/test_several_answers.py",)

WIRE = (
    Mutant(
        "a stop token after an echo has no entry",
        "serve/routes/output.py",
        "if by_token and not self._keeps_stop:",
        "if by_token:",
        SCORES,
    ),
    Mutant(
        "an echo's first token has a log-probability",
        "serve/wire/logprobs.py",
        "CompletionLogprobs([], [None], [None], [])",
        "CompletionLogprobs([], [], [], [])",
        SCORES,
    ),
    Mutant(
        "special tokens have no place in an echo",
        "serve/wire/logprobs.py",
        'spelled = spelled if text.startswith(spelled, self._offset) else ""',
        'spelled = ""',
        SCORES,
    ),
    Mutant(
        "a message that goes on may be trimmed",
        "runtime/text/messages.py",
        'f"{end}{mark}"',
        'f"{str(end).rstrip()}{mark}"',
        CONTINUED,
    ),
    Mutant(
        "a user's message is continued",
        "runtime/text/messages.py",
        'role != "assistant" or last.get("tool_calls")',
        'last.get("tool_calls")',
        CONTINUED,
    ),
    Mutant(
        "an answer that goes on may think",
        TRANSLATE,
        "replace(thinking, begun=True) if opened and thinking.end not in thoughts else None",
        "replace(thinking, begun=bool(opened and thinking.end not in thoughts))",
        CONTINUED,
    ),
    Mutant(
        "all answers have one seed",
        TRANSLATE,
        "seed=(seed + turn) % SEEDS",
        "seed=seed",
        ANSWERS,
    ),
    Mutant(
        "each answer counts its prompt",
        "serve/wire/answers.py",
        "requests[::answers]",
        "requests",
        ANSWERS,
    ),
    Mutant(
        "a field of another server is ignored",
        FIELDS,
        "            raise unsupported(name, rule[1])",
        "            ignored.append(name)",
        OTHERS,
    ),
    Mutant(
        "an unknown name is ignored, whatever it says",
        FIELDS,
        "if rule is None and _narrows(known):",
        "if False:",
        OTHERS,
    ),
    Mutant(
        "a tool's schema of its result narrows the answer",
        FIELDS,
        'return not name.startswith(("messages[]", "tools[]")) and',
        "return",
        OTHERS,
    ),
    Mutant(
        "one long name hides the ignored ones behind it",
        "serve/routes/generate.py",
        "listed = longer if len(longer) <= LONGEST_HEADER else listed",
        "listed = longer if len(longer) <= LONGEST_HEADER else listed[:0]",
        ("tests/serve/test_answers.py",),
    ),
    Mutant(
        "no limit beside a limit is one",
        FIELDS,
        'if target != "max_tokens" or fields.get(target) is not None:',
        'if target != "max_tokens":',
        OTHERS,
    ),
    Mutant(
        "a history whose thoughts were cut off is refused",
        TRANSLATE,
        ' and not (thoughts and message.role == "assistant")',
        "",
        LENIENT,
    ),
    Mutant(
        "a history's calls are left out of a template without tools",
        "runtime/text/encode.py",
        "self._template_for(bool(tools) or called)",
        "self._template_for(bool(tools))",
        ("tests/serve/test_tools.py",),
    ),
    Mutant(
        "a call of a history without arguments is refused",
        "serve/wire/requests.py",
        "arguments: str | dict[str, Any] | None = None",
        "arguments: str",
        ("tests/serve/test_tools.py",),
    ),
    Mutant("in other objects no field is known", FIELDS, 'PLACE.sub("[]", name)', "name", OTHERS),
    Mutant(
        "true is 1",
        FIELDS,
        "isinstance(one, int | float) and not isinstance(one, bool)",
        "isinstance(one, int | float)",
        OTHERS,
    ),
    Mutant(
        "of two names of one thing the last counts",
        FIELDS,
        "if fields.get(target) not in (None, value):",
        "if False:",
        OTHERS,
    ),
    Mutant(
        "errors name a field that the client did not send",
        "serve/wire/body.py",
        "raise named_as_sent(error, sent_as) from None",
        "raise error from None",
        OTHERS,
    ),
    Mutant(
        "half a character is text",
        "serve/wire/body.py",
        "SURROGATE.search(body)",
        "False",
        ("tests/serve/test_body.py",),
    ),
    Mutant(
        "a number beyond all floats is infinity",
        "serve/wire/body.py",
        "math.isinf(number)",
        "False",
        ("tests/serve/test_body.py",),
    ),
    Mutant(
        "a client's key is taken for an index",
        STRUCTS,
        "in_list = isinstance(value, list)",
        "in_list = step[0] == '['",
        ("tests/serve/test_body.py",),
    ),
    Mutant(
        "1.5 is an integer",
        "serve/wire/body.py",
        "number.is_integer() and abs(number) <= LARGEST_EXACT",
        "abs(number) <= LARGEST_EXACT",
        OTHERS,
    ),
    Mutant(
        "integers have no point",
        "serve/wire/body.py",
        "number.is_integer() and abs(number) <= LARGEST_EXACT",
        "False",
        OTHERS,
    ),
    Mutant(
        "numbers of tools and calls lose their points",
        "serve/wire/body.py",
        "json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_finite, parse_constant=_constant)",
        "json.JSONDecoder(object_pairs_hook=_pairs, parse_float=lambda text: _integer(_finite(text)))",
        OTHERS,
    ),
    Mutant(
        "the model's end counts with ignore_eos",
        TRANSLATE,
        "() if request.stop_token_ids is None and request.ignore_eos else request.stop_token_ids",
        "request.stop_token_ids",
        LENIENT,
    ),
    Mutant(
        "ignore_eos ends at none of the request's tokens either",
        TRANSLATE,
        "request.stop_token_ids is None and request.ignore_eos",
        "request.ignore_eos",
        LENIENT,
    ),
    Mutant("top_p 0 is off", TRANSLATE, "    if request.top_p == 0:", "    if request.top_p == -1:", LENIENT),
    Mutant(
        "a refusal is left out of the history",
        TRANSLATE,
        "(message.content, message.refusal)",
        "(message.content,)",
        LENIENT,
    ),
    Mutant(
        "a schema's relaxing is not told",
        "serve/routes/generate.py",
        '["response_format"]',
        "[]",
        CONSTRAINED,
    ),
    Mutant(
        "strict schemas are relaxed",
        "serve/wire/constraints.py",
        "not loose or wanted is None or wanted.strict or "
        "(wanted.json_schema is not None and wanted.json_schema.strict)",
        "not loose or wanted is None or (wanted.json_schema is not None and wanted.json_schema.strict)",
        CONSTRAINED,
    ),
    Mutant(
        "a schema beside json_object is ignored",
        "serve/wire/constraints.py",
        '("json_schema", "schema", "value", "pattern")',
        '("json_schema", "value", "pattern")',
        CONSTRAINED,
    ),
    Mutant(
        "halves of characters share an entry",
        "serve/wire/logprobs.py",
        """return "bytes:" + "".join(f"\\\\x{byte:02x}" for byte in data)""",
        """return data.decode(errors="replace")""",
        LOGPROBS,
    ),
    Mutant(
        "another token's probability stands for the token",
        "serve/wire/logprobs.py",
        "if token != entry.token and (name == itself or name in by_name):",
        "if name in by_name:",
        LOGPROBS,
    ),
    Mutant(
        "offsets count the letters of names",
        "serve/wire/logprobs.py",
        "self._offset += len(self._decoder.decode(self._texts.bytes_of(entry.token)))",
        "self._offset += len(self._texts.name_of(entry.token))",
        LOGPROBS,
    ),
    Mutant(
        "schemas that are joined are closed",
        "runtime/tools/tool.py",
        "JOINING & {*one} or len(JOINED & {*one}) > 1",
        "len(JOINED & {*one}) > 1",
        CLOSING,
    ),
    Mutant(
        "what is beside a reference is closed",
        "runtime/tools/tool.py",
        "JOINING & {*one} or len(JOINED & {*one}) > 1",
        "JOINING & {*one}",
        CLOSING,
    ),
    Mutant(
        "the model is told a closed schema",
        "runtime/tools/tool.py",
        "parameters = dict(self.parameters or {})\n",
        "parameters = dict(closed(dict(self.parameters or {})))\n",
        CLOSING,
    ),
    Mutant(
        "a call that was cut off goes to a template that reads its arguments",
        "serve/wire/tools.py",
        "return arguments if takes_texts and isinstance(arguments, str) and arguments.strip() else {}",
        "return arguments",
        ("tests/serve/test_tools.py",),
    ),
    Mutant(
        "of stop strings that end together the shortest counts",
        "runtime/text/detokenizer.py",
        "sorted({*map(len, self._stops)}, reverse=True)",
        "sorted({*map(len, self._stops)})",
        STOPS,
    ),
    Mutant(
        "a stop string that begins in the text before is missed",
        "runtime/text/detokenizer.py",
        "range(most, 0, -1)",
        "range(min(most, 1), 0, -1)",
        STOPS,
    ),
    Mutant(
        "only the first name is the model's", "serve/service.py", "name not in self.names", "name != self.name", NAMES
    ),
    Mutant(
        "the description says that no key is needed",
        "serve/app.py",
        "bool(settings.api_keys)",
        "False",
        ("tests/serve/test_openapi.py",),
    ),
    Mutant(
        "a prompt that is too long is told in other words",
        "serve/wire/errors.py",
        "too long ({TOO_LONG}), as at",
        "large, as at",
        ("tests/serve/test_tools.py",),
    ),
    Mutant(
        "the field at fault is not told",
        ERRORS,
        "return invalid(field, message, error.code)",
        "return invalid(None, str(error), error.code)",
        MAPPED,
    ),
    Mutant(
        "a message calls the field as the runtime does",
        ERRORS,
        'if message.startswith(f"{error.field} "):',
        "if False:",
        MAPPED,
    ),
    Mutant(
        "a refined code is not told",
        ERRORS,
        "return invalid(field, message, error.code)",
        "return invalid(field, message)",
        MAPPED,
    ),
    Mutant(
        "fields of the extension are named as if they were the request's",
        ERRORS,
        'return f"specexport.{field}" if field in EXTENSION',
        "return field if field in EXTENSION",
        MAPPED,
    ),
    Mutant(
        "a limit is named as the runtime calls it",
        ERRORS,
        'CALLED.get(field or "", field)',
        "field",
        MAPPED,
    ),
    Mutant(
        "a long conversation is a long prompt",
        "runtime/text/encode.py",
        '"messages" if isinstance(prompt, list) and isinstance(prompt[0], Mapping) else "prompt",',
        '"prompt",',
        REFUSALS,
    ),
    Mutant(
        "a full queue is the server's fault",
        ERRORS,
        '"queue_full": 429, ',
        '"queue_full": 503, ',
        MAPPED,
    ),
    Mutant(
        "a key that is missing is not named",
        STRUCTS,
        "if required and name not in value)",
        "if required and name in value)",
        REFUSALS,
    ),
    Mutant(
        "the tool above is blamed",
        "serve/wire/calls.py",
        "lines[number - 1] if",
        "lines[number - 2] if",
        ("tests/serve/test_tools.py",),
    ),
    Mutant(
        "a verdict that is remembered forgets its line",
        "runtime/grammar/compiler.py",
        "GrammarError(error.reason, code=error.code, kind=error.kind, line=error.line)",
        "GrammarError(error.reason, code=error.code, kind=error.kind)",
        ("tests/serve/test_tools.py",),
    ),
)
