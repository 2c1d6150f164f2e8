"""Faults in acceptance and in the processing of logits."""

from __future__ import annotations

from .mutant import Mutant

ACCEPTANCE, DISTRIBUTION = "runtime/sampling/acceptance.py", "runtime/sampling/distribution.py"
RULES, ADJUSTMENT = "runtime/sampling/rules.py", "runtime/sampling/adjustment.py"
TRUNCATION = "runtime/sampling/truncation.py"
PARAMETERS, GENERATION_CONFIG = (
    "runtime/sampling/parameters.py",
    ("tests/exporter/checkpoints/test_generation_config.py",),
)
TESTS = "tests/runtime/sampling"
EXACT = ("tests/runtime/proofs/test_enumeration.py", f"{TESTS}/test_acceptance.py", f"{TESTS}/test_rules.py")

SAMPLING = (
    Mutant(
        "token rule accepts at equality",
        ACCEPTANCE,
        "if not uniforms[index] * draft.of(draft_token) < probs.of(draft_token):",
        "if not uniforms[index] * draft.of(draft_token) <= probs.of(draft_token):",
        EXACT,
    ),
    Mutant(
        "token rule draws the follower from the target",
        ACCEPTANCE,
        "return index, _follow(probs, 1.0, draft, uniforms[-1])",
        "return index, probs.draw(uniforms[-1])",
        EXACT,
    ),
    Mutant(
        "draw forgets the blocks before",
        DISTRIBUTION,
        "(sums[block - 1] if block else 0.0)",
        "0.0",
        (f"{TESTS}/test_distribution_class.py",),
    ),
    Mutant(
        "draw behind the block whose sum rounds apart",
        DISTRIBUTION,
        "self.probs[:end].nonzero()",
        "self.probs.nonzero()",
        (f"{TESTS}/test_distribution_class.py",),
    ),
    Mutant(
        "block rule without its cap",
        ACCEPTANCE,
        "ratio = min(1.0, ratio * target(index - 1).of(draft_token) / draft.of(draft_token))",
        "ratio = ratio * target(index - 1).of(draft_token) / draft.of(draft_token)",
        EXACT,
    ),
    Mutant(
        "block rule's residual not scaled",
        ACCEPTANCE,
        "_follow(target(accepted), accepted_ratio, draft_probs[accepted], uniforms[-1])",
        "_follow(target(accepted), 1.0, draft_probs[accepted], uniforms[-1])",
        EXACT,
    ),
    Mutant(
        "a broken row behind a rejected token ends the request",
        RULES,
        "                if known == size:\n                    raise\n",
        "                raise\n",
        (f"{TESTS}/test_rules.py",),
    ),
    Mutant(
        "block rule's chance without what the draft lost",
        ACCEPTANCE,
        "whole = left + (1.0 - ratio)",
        "whole = left",
        EXACT,
    ),
    Mutant(
        "residual not clipped",
        DISTRIBUTION,
        "np.maximum(left, 0.0, out=left)",
        "np.abs(left, out=left)",
        (f"{TESTS}/test_distribution_class.py", *EXACT),
    ),
    Mutant(
        "a uniform of zero draws what has no mass",
        DISTRIBUTION,
        'searchsorted(rest, side="right")',
        'searchsorted(rest, side="left")',
        (f"{TESTS}/test_distribution_class.py", *EXACT),
    ),
    Mutant(
        "one stream of noise for draft and target",
        RULES,
        "draft_seed, target_seed = np.random.SeedSequence(seed).spawn(2)",
        "draft_seed = target_seed = np.random.SeedSequence(seed).spawn(2)[0]",
        (f"{TESTS}/test_rules.py", f"{TESTS}/test_distribution.py"),
    ),
    Mutant(
        "greedy rows judged by the penalties of the round's start",
        RULES,
        'return _argmax("target", self._target_row(target_logits[index], draft_tokens[:index]), index)',
        'return _argmax("target", self._target_row(target_logits[index], []), index)',
        (f"{TESTS}/test_rules.py", "tests/runtime/loop/test_speculate.py"),
    ),
    Mutant(
        "sampled rows judged by the penalties of the round's start",
        RULES,
        'return self._distribution("target", self._target_row(target_logits[index], draft_tokens[:index]), index)',
        'return self._distribution("target", self._target_row(target_logits[index], []), index)',
        (f"{TESTS}/test_rules.py", f"{TESTS}/test_distribution.py"),
    ),
    Mutant(
        "repetition penalty that helps negative logits",
        ADJUSTMENT,
        "np.where(logits > 0, logits / penalty, logits * penalty)",
        "logits / penalty",
        (f"{TESTS}/test_adjustment.py",),
    ),
    Mutant(
        "penalties forget the draft",
        ADJUSTMENT,
        "np.add.at(output, np.asarray(drafted, np.int64), 1)",
        "np.add.at(output, np.asarray(drafted[:0], np.int64), 1)",
        (f"{TESTS}/test_adjustment.py",),
    ),
    Mutant(
        "minimum length forgets the draft",
        ADJUSTMENT,
        "if self._emitted + len(drafted) < (self._parameters.min_new_tokens or 0):",
        "if self._emitted < (self._parameters.min_new_tokens or 0):",
        (f"{TESTS}/test_adjustment.py",),
    ),
    Mutant(
        "a bundle's defaults go over what a request says",
        PARAMETERS,
        "{name: usual[name] for name in UNADJUSTED if getattr(self, name) is None}",
        "{name: usual[name] for name in UNADJUSTED}",
        GENERATION_CONFIG,
    ),
    Mutant(
        "a bundle's minimum length refuses shorter answers",
        PARAMETERS,
        "min(defaults.min_new_tokens, self.max_new_tokens)",
        "defaults.min_new_tokens",
        GENERATION_CONFIG,
    ),
    Mutant(
        "proofs judge adjusted tokens by the logits before that",
        "runtime/proofs/equality.py",
        """params = SamplingParameters(
    **UNADJUSTED,
    stop_token_ids=(),
    max_new_tokens=max_new_tokens,
    drafter=check_drafter(drafter, session.bundle.manifest.draft_names),
    num_draft_tokens=session.max_draft_tokens,
)""",
        """params = SamplingParameters(
    stop_token_ids=(),
    max_new_tokens=max_new_tokens,
    drafter=check_drafter(drafter, session.bundle.manifest.draft_names),
    num_draft_tokens=session.max_draft_tokens,
)""",
        GENERATION_CONFIG,
    ),
    Mutant(
        "top-k drops ties",
        TRUNCATION,
        "kept = values >= np.partition(values, -top_k)[-top_k]",
        "kept = np.argsort(np.argsort(-values)) < top_k",
        (f"{TESTS}/test_truncation.py",),
    ),
    Mutant(
        "top-p of the whole mass behind a top-k",
        TRUNCATION,
        "goal = parameters.top_p * float(_weights(values[kept], top, temperature).sum())",
        "goal = parameters.top_p * float(_weights(logits, top, temperature).sum())",
        (f"{TESTS}/test_truncation.py",),
    ),
    Mutant(
        "min-p in front of the temperature",
        TRUNCATION,
        "temperature * math.log(parameters.min_p)",
        "math.log(parameters.min_p)",
        (f"{TESTS}/test_truncation.py",),
    ),
    Mutant(
        "a nucleus of one token more than it needs",
        TRUNCATION,
        "_weights(ranked, top, temperature).cumsum().searchsorted(goal)",
        '_weights(ranked, top, temperature).cumsum().searchsorted(goal, side="right")',
        (f"{TESTS}/test_truncation.py",),
    ),
    Mutant(
        "candidates that no rule judges are dropped",
        "runtime/request.py",
        '(not spectr, "; ask for it, or leave num_candidates out")',
        '(False, "")',
        ("tests/runtime/test_session_options.py",),
    ),
    Mutant(
        "advice for candidates is given whatever the bundle has",
        "runtime/request.py",
        "drafters and not parameters.greedy if spectr else wanted",
        "drafters and spectr and not parameters.greedy",
        ("tests/runtime/test_session_options.py",),
    ),
)
