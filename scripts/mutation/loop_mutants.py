"""Faults in the sequence and its roll-back, the loop, drafts, the schedule and text."""

from __future__ import annotations

from .mutant import Mutant

CONTEXT, LOOP_FILE = "runtime/state/context.py", "runtime/loop/speculate.py"
DRAFTERS, LOOKUP, TRANSLATE = (f"runtime/drafting/{name}.py" for name in ("drafters", "lookup", "translate"))
MODEL, NAMES = "runtime/drafting/model_draft.py", "runtime/drafting/names.py"
LOOKUP_WORTH = "runtime/policy/lookup_worth.py"
SCHEDULE, DEVICE_ROUNDS = "runtime/policy/schedule.py", "runtime/loop/device_rounds.py"
ROUTED, ROUNDS = "runtime/policy/routed_schedule.py", "runtime/drafting/rounds.py"
REQUEST = "runtime/request.py"
DETOKENIZER, CHAT = "runtime/text/detokenizer.py", "runtime/text/chat_template.py"
IN_LOOP = ("tests/runtime/state", "tests/runtime/loop", "tests/runtime/drafting")
IN_SCHEDULE = ("tests/runtime/policy",)

LOOP = (
    Mutant(
        "a chain may have a draft that keeps states",
        NAMES,
        "    if guesser_of(found) is not None and not guessable(found, manifest):",
        "    if False:",
        ("tests/runtime/test_several_drafts.py",),
    ),
    Mutant(
        "under a grammar a chain is kept",
        REQUEST,
        "        drafters = tuple(map(unguessed, drafters))",
        "        pass",
        ("tests/runtime/grammar/test_sessions.py",),
    ),
    Mutant(
        "roll-back forgets a draft beside the first",
        CONTEXT,
        """        for cached in self.every_decoder:
            cached.keep(rows)""",
        """        for cached in self.decoders:
            cached.keep(rows)""",
        ("tests/runtime/test_several_drafts.py",),
    ),
    Mutant(
        "roll-back forgets the draft's cache",
        CONTEXT,
        """        for cached in self.every_decoder:
            cached.keep(rows)""",
        """        for cached in self.every_decoder[:1]:
            cached.keep(rows)""",
        IN_LOOP,
    ),
    Mutant(
        "the prompt's last token is not fed again",
        CONTEXT,
        "self.target.keep(len(prompt) - 1)",
        "self.target.keep(len(prompt))",
        (*IN_LOOP, "tests/runtime/test_session.py"),
    ),
    Mutant(
        "a kept prefix reaches behind the first difference",
        CONTEXT,
        "min(common, cached.last(prompt)) if cached.decoder.has_states else common",
        "min(common, cached.last(prompt)) if cached.decoder.has_states else common + 1",
        (*IN_LOOP, "tests/runtime/test_session.py"),
    ),
    Mutant(
        "a request with a seed learns from others",
        "runtime/policy/decisions.py",
        "state = RouteState(alone=True) if seeded else states.setdefault(drafter",
        "state = states.setdefault(drafter",
        ("tests/runtime/costs/test_first.py",),
    ),
    Mutant(
        "kept costs are of any number of threads",
        "runtime/costs/first.py",
        """[
            bundle_identity(session.bundle, draft), describe_host(engine.name, engine.device), engine.name,
            session.threads
        ]""",
        "[bundle_identity(session.bundle, draft), describe_host(engine.name, engine.device), engine.name]",
        ("tests/runtime/costs/test_first.py",),
    ),
    Mutant(
        "sequences of different salts share rows",
        CONTEXT,
        "shared_prefix(self.tokens, prompt) if salt == self.salt else 0",
        "shared_prefix(self.tokens, prompt)",
        ("tests/runtime/state/test_conversations.py",),
    ),
    Mutant(
        "rows that a sequence got back are counted before they are there",
        CONTEXT,
        "cached.decoder.write_rows(found.rows, found.there, found.end)",
        "pass",
        ("tests/runtime/state/test_conversations.py",),
    ),
    Mutant(
        "a saved sequence is told by its length alone",
        "runtime/state/places.py",
        "if one != other:",
        "if one != other and index < 3:",
        ("tests/runtime/state/test_conversations.py",),
    ),
    Mutant(
        "forgetting leaves the caches as they are",
        CONTEXT,
        "cached.decoder.overwrite_rows(0, 0.0)",
        "pass",
        (*IN_LOOP, "tests/runtime/test_session_failures.py"),
    ),
    Mutant(
        "roll-back keeps a rejected row",
        LOOP_FILE,
        "context.keep(len(tokens) + outcome.num_accepted)",
        "context.keep(len(tokens) + outcome.num_accepted + 1)",
        IN_LOOP,
    ),
    Mutant(
        "a round drafts beyond the limit",
        LOOP_FILE,
        "round.run(tokens, plan.limited(limit - 1))",
        "round.run(tokens, plan.limited(limit))",
        IN_LOOP,
    ),
    Mutant(
        "the draft lacks a row behind full acceptance",
        MODEL,
        "place = max(0, min(self._cached.rows, len(tokens) - 2))",
        "place = len(tokens) - 1",
        ("tests/runtime/drafting", "tests/runtime/loop"),
    ),
    Mutant(
        "a lookup beside a model takes short matches",
        DRAFTERS,
        "SHORTEST_ALONE if lookup == name else SHORTEST_BESIDE_A_MODEL",
        "SHORTEST_ALONE",
        ("tests/runtime/drafting",),
    ),
    Mutant(
        "a lookup behind the model's tokens looks behind the text's last",
        DRAFTERS,
        "self._lookup.find(tokens, count, drafted)",
        "self._lookup.find(tokens, count)",
        ("tests/runtime/drafting",),
    ),
    Mutant(
        "what is looked up behind the model's tokens is more than was asked for",
        DRAFTERS,
        "count = plan.num_draft_tokens - len(drafted)",
        "count = plan.num_draft_tokens",
        ("tests/runtime/drafting", "tests/runtime/loop"),
    ),
    Mutant(
        "a lookup goes on behind forced tokens, which may not stand",
        DRAFTERS,
        """    if isinstance(draft, ExtendedDraft):
        return draft.model""",
        """    if isinstance(draft, ExtendedDraft):
        return draft  # type: ignore[return-value]""",
        ("tests/runtime/drafting",),
    ),
    Mutant(
        "a prediction is read on at a place that the output may not come to",
        LOOKUP,
        "if not drafted:  # else",
        "if True:  # else",
        ("tests/runtime/drafting", "tests/runtime/test_session_prediction.py"),
    ),
    Mutant(
        "a lookup takes more than its match is long",
        LOOKUP,
        "min(count, best)",
        "count",
        ("tests/runtime/drafting/test_lookup.py",),
    ),
    Mutant(
        "the shortest n-gram first",
        LOOKUP,
        "range(longest, shortest - 1, -1)",
        "range(shortest, longest + 1)",
        ("tests/runtime/drafting/test_lookup.py",),
    ),
    Mutant(
        "a narrow draft is fed the first id that it lacks",
        TRANSLATE,
        "token if token < self.vocab_size else 0",
        "token if token <= self.vocab_size else 0",
        ("tests/runtime/drafting",),
    ),
    Mutant(
        "translated logits read by the target's ids",
        TRANSLATE,
        "translated[:, self._target_ids] = logits[:, self._draft_ids]",
        "translated[:, self._target_ids] = logits[:, self._target_ids % logits.shape[1]]",
        ("tests/runtime/drafting/test_translate.py",),
    ),
    Mutant(
        "a draft token is worth what its time is not asked",
        SCHEDULE,
        "worth = alive - self._rate * (verify[index + 1] - verify[index])",
        "worth = alive",
        IN_SCHEDULE,
    ),
    Mutant(
        "the best fixed number counts each token as alive",
        SCHEDULE,
        """            alive *= chance
            tokens += alive""",
        """            alive *= chance
            tokens += chance""",
        IN_SCHEDULE,
    ),
    Mutant(
        "probes that nobody has saved up for",
        SCHEDULE,
        "if state.allowance < self._price_of_probe(behind) and not at_once:",
        "if state.allowance < 0.0 and not at_once:",
        IN_SCHEDULE,
    ),
    Mutant(
        "a rejected token counts as accepted",
        SCHEDULE,
        "judged = num_accepted + (num_accepted < num_drafted)",
        "judged = num_accepted",
        IN_SCHEDULE,
    ),
    Mutant(
        "the first further token alone is looked at",
        SCHEDULE,
        """            if gain > 0:
                return True
        return False""",
        """            return gain > 0
        return False""",
        IN_SCHEDULE,
    ),
    Mutant(
        "a draft that could never pay is asked again at once",
        SCHEDULE,
        "if self._probing and num_accepted == num_drafted and self._could_pay:",
        "if self._probing and num_accepted == num_drafted:",
        IN_SCHEDULE,
    ),
    Mutant(
        "a match does not grow with what stands of it",
        LOOKUP_WORTH,
        "good = odds * (length + index - 1)",
        "good = odds * (length - 1)",
        IN_SCHEDULE,
    ),
    Mutant(
        "a lookup is taken although the model would gain more",
        LOOKUP_WORTH,
        "taken, gain, best, odds = 0, 0.0, least, self._odds",
        "taken, gain, best, odds = 0, 0.0, 0.0, self._odds",
        IN_SCHEDULE,
    ),
    Mutant(
        "lookups behind a rejection are learnt from",
        LOOKUP_WORTH,
        "range(place, min(num_drafted, num_accepted + 1))",
        "range(place, num_drafted)",
        IN_SCHEDULE,
    ),
    Mutant(
        "lookups that nobody has saved up for",
        LOOKUP_WORTH,
        "if state.allowance < price:",
        "if state.allowance < 0.0:",
        IN_SCHEDULE,
    ),
    Mutant(
        "the model is told of what was looked up",
        "runtime/policy/lookup_schedule.py",
        "self._learn(*outcome.of_model)",
        "self._learn(num_drafted, num_accepted)",
        IN_SCHEDULE,
    ),
    Mutant(
        "rounds that were looked up are timed as plain ones",
        "runtime/policy/lookup_schedule.py",
        "if outcome.draft_tokens and not self._passes:",
        "if False:",
        IN_SCHEDULE,
    ),
    Mutant(
        "a pass of a model that is not to draft",
        MODEL,
        "if not count or (guide is not None and not guide.go_on(0)):",
        "if not count:",
        ("tests/runtime/drafting",),
    ),
    Mutant(
        "requests of one seed teach each other by a policy",
        "runtime/policy/decisions.py",
        "state = RouteState(alone=True) if seeded else states.setdefault(key",
        "state = states.setdefault(key",
        IN_SCHEDULE,
    ),
    Mutant(
        "the first round of a kind is timed too",
        SCHEDULE,
        "if self._had_draft == (passes > 0):",
        "if True:",
        IN_SCHEDULE,
    ),
    Mutant(
        "rounds are compared with what they should take, not with their neighbours",
        "runtime/policy/pace.py",
        "slower = median(taken / of for taken, of in self._before)",
        "slower = median(1.0 for _ in self._before)",
        IN_SCHEDULE,
    ),
    Mutant(
        "the first comparison is believed alone",
        "runtime/policy/pace.py",
        "(len(self._found) + PRIOR)",
        "len(self._found)",
        IN_SCHEDULE,
    ),
    Mutant(
        "comparisons are free",
        "runtime/policy/pace.py",
        "self._purse[drafting] -= max(0.0, 2 * price)",
        "self._purse[drafting] -= 0.0",
        IN_SCHEDULE,
    ),
    Mutant(
        "a choice of drafts that stays is looked at in every round",
        ROUTED,
        "self._gap = min(max(1, 2 * self._gap), RAREST)",
        "self._gap = 1",
        IN_SCHEDULE,
    ),
    Mutant(
        "a choice of drafts that has just changed is not looked at",
        ROUTED,
        "            self._gap = 1\n",
        "",
        IN_SCHEDULE,
    ),
    Mutant(
        "only the last round before a look counts",
        ROUTED,
        "for drafted, accepted in self._heard:",
        "for drafted, accepted in self._heard[-1:]:",
        IN_SCHEDULE,
    ),
    Mutant(
        "rounds count again at every look",
        ROUTED,
        "        self._heard.clear()\n",
        "",
        IN_SCHEDULE,
    ),
    Mutant(
        "the plan does not say which drafter was chosen",
        ROUTED,
        "drafter=self._drafter, leaves=None)",
        "leaves=None)",
        IN_SCHEDULE,
    ),
    Mutant(
        "the last tokens before the limit may all be forced",
        ROUNDS,
        "forced=self.forced[:most]",
        "forced=self.forced",
        ("tests/runtime/drafting/test_rounds.py",),
    ),
    Mutant(
        "accepted tokens of a lookup count as the model's",
        ROUNDS,
        "return drafted, min(self.num_accepted, drafted)",
        "return drafted, self.num_accepted",
        ("tests/runtime/drafting/test_rounds.py",),
    ),
    Mutant(
        "tokens after a part count in its outcome",
        ROUNDS,
        "accepted = min(self.num_accepted, stop) - start",
        "accepted = self.num_accepted - start",
        ("tests/runtime/drafting/test_rounds.py",),
    ),
    Mutant(
        "forced tokens teach the schedule how good the draft is",
        "runtime/policy/forced.py",
        "self._schedule.observe(outcome.part(forced, outcome.num_drafted))",
        "self._schedule.observe(outcome)",
        IN_SCHEDULE,
    ),
    Mutant(
        "forced tokens come on top of a number that was asked for",
        "runtime/policy/forced.py",
        "len(forced) * self._on_top",
        "len(forced)",
        IN_SCHEDULE,
    ),
    Mutant(
        "a prediction teaches the schedule how good the draft is",
        "runtime/policy/predicted.py",
        "self._schedule.observe(outcome.part(0, own))",
        "self._schedule.observe(outcome)",
        IN_SCHEDULE,
    ),
    Mutant(
        "a round says the same of all drafters",
        "runtime/policy/route_belief.py",
        "outcome = (drafter, drafted, accepted)",
        'outcome = ("", drafted, accepted)',
        IN_SCHEDULE,
    ),
    Mutant(
        "the device's round leaves the draft a row too many",
        DEVICE_ROUNDS,
        "draft.rows = len(tokens) + k - 1",
        "draft.rows = len(tokens) + k",
        ("tests/runtime/loop",),
    ),
    Mutant(
        "noise for the device rounded up to one",
        DEVICE_ROUNDS,
        "np.minimum(uniforms.astype(np.float32), np.nextafter(np.float32(1.0), np.float32(0.0)))",
        "uniforms.astype(np.float32)",
        ("tests/runtime/loop",),
    ),
    Mutant(
        "half a character is emitted",
        DETOKENIZER,
        "if place == self._emitted or not self._text(place).endswith(REPLACEMENT):",
        "if place == self._emitted or self._text(place):",
        ("tests/runtime/text",),
    ),
    Mutant(
        "the last of several stop strings wins",
        DETOKENIZER,
        "return self._release(min(places))",
        "return self._release(max(places))",
        ("tests/runtime/text",),
    ),
    Mutant(
        "the start of a stop string is not held back",
        DETOKENIZER,
        "most = min(self._sizes[0] - 1, len(self._held)) if self._sizes else 0",
        "most = min(self._sizes[0] - 2, len(self._held)) if self._sizes else 0",
        ("tests/runtime/text",),
    ),
    Mutant(
        "chat without the start of the assistant's turn",
        CHAT,
        "True",
        "False",
        ("tests/runtime/text",),
        within="ChatTemplate.as_given",
    ),
)
