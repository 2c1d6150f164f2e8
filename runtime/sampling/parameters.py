"""What a request asks for: how it is sampled, where it ends, how it is drafted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from ...bundle import Defaults
from ...bundle.drafts import DRAFTER_DEFAULT, DRAFTERS_HELP
from ...errors import ParameterError
from ..grammar.grammar import Grammar
from .options import Biases, Choice, Flag, Number, OutputGrammar, Text, Texts, TokenIds, Whole, option

Verification = Literal["block", "token", "spectr"]
# Rules that devices have; rounds with any other rule run on the host.
ON_DEVICE: tuple[Verification, ...] = ("block", "token")

SEEDS = 2**64
# A request without the bundle's defaults.
UNADJUSTED: dict[str, Any] = dict(repetition_penalty=1.0, banned_tokens=(), min_new_tokens=0, stop=())


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """The options of a request: how it is sampled, where it ends, how it is drafted.

    The default is greedy decoding with everything else off. Without a seed every request draws new noise.

    Order of processing: grammar; logit bias; repetition, frequency and presence penalty; bans; temperature; top-k;
    top-p; min-p. Penalties see each row's own prefix: the repetition penalty prompt and output, as in Keskar et al.
    (2019), presence and frequency penalties only the output, as in the OpenAI API. min_new_tokens forbids the stop
    tokens before that many tokens.

    grammar: what the output must match, see `Grammar`; once it is complete, the model's stop tokens are allowed. It
    excludes min_new_tokens.

    seed: the same seed, parameters, bundle and engine give the same tokens, as long as the bundle's costs and policy
    stay the same. Any integer from -2**63 on; negative ones count modulo 2**64, as in torch.

    repetition_penalty, banned_tokens, min_new_tokens, stop: None takes the bundle's defaults, which come from the
    target's generation_config.json (`Bundle.manifest.defaults`); 1, `()`, 0 and `()` turn them off.

    stop: strings before which the text ends; the tokens include those of the string. stop_token_ids: None for the
    model's own, `()` for none; the stop token is the last token and has no text.

    verification: the rule that judges sampled drafts; every rule keeps the target's distribution, and greedy decoding
    ignores it. `spectr` judges candidates in addition to the draft tokens, in a bundle built with `--tree-rows`
    (docs/drafts.md). speculate: False for plain decoding.

    drafter: `model`; `ngram` (looked up in the text, then in earlier answers); `ngram+model` (looked up if there is a
    match, also after tokens of the model in the same round). By default the policy's; without a policy `ngram+model`
    (`model` if the device runs whole rounds), or `ngram` in a bundle without a draft. In a bundle with several drafts
    `model` is the first; the name of any draft can take its place, as in `code` and `ngram+code`.

    num_draft_tokens: k of every round, 0 for plain decoding. If neither it nor a drafter is given, the bundle's policy
    decides for the request's `route` (the default entry for no route, or an unknown one); without a policy, the session
    drafts as many as pay. If only num_draft_tokens is given, the policy's drafter drafts.

    num_candidates: candidates per round, with `spectr` only; by default as many as `--tree-rows` has room for. There
    are none if no model drafts (`speculate` False, a route that only looks up) or decoding is greedy.

    prediction: a text, or token ids, that the output may largely repeat, such as a file to be changed in a few places
    (OpenAI's Predicted Outputs). Drafts are looked up in it first, as many as the bundle allows unless num_draft_tokens
    is given; the output stays the same.

    logprobs: log-probabilities of each token of the output and of that many likeliest tokens, from the target's logits
    before bias, penalties, bans and temperature; None for none. prompt_logprobs: the same for each token of the prompt
    except the first; max_new_tokens may then be 0.

    shown: special tokens that appear in the text by name, in addition to those that a grammar names; others have no
    text. cache_salt: requests with different salts share no cached rows or earlier answers, so that nobody learns from
    timing what another user sent.

    Raises `ParameterError`. A new parameter is one field here: `Session.stream` and `specexport generate` derive their
    options from these fields.
    """

    max_new_tokens: int = option(Whole(least=None, help="Maximum new tokens."), 256)
    temperature: float = option(Number(low=0.0, high=100.0, off="0 is greedy", help="Sampling temperature."), 0.0)
    top_k: int = option(Whole(help="Keep only this many of the likeliest tokens; 0 is off."), 0)
    top_p: float = option(
        Number(
            low=0.0,
            high=1.0,
            above=True,
            off="1 is off",
            help="Keep the likeliest tokens up to this probability mass.",
        ),
        1.0,
    )
    min_p: float = option(
        Number(low=0.0, high=1.0, off="0 is off", help="Drop tokens below this share of the largest probability."), 0.0
    )
    repetition_penalty: float | None = option(
        Number(low=0.01, high=100.0, off="1 is off", optional=True, help="Penalty for tokens in prompt and output.")
    )
    presence_penalty: float = option(
        Number(low=-2.0, high=2.0, off="0 is off", help="Penalty for tokens in the output."), 0.0
    )
    frequency_penalty: float = option(
        Number(low=-2.0, high=2.0, off="0 is off", help="Penalty per occurrence in the output."), 0.0
    )
    logit_bias: Mapping[int, float] = option(Biases(help="Add BIAS to the logit of token ID; repeatable."), dict)
    banned_tokens: Iterable[int] | None = option(
        TokenIds(optional=True, flag="--ban-token", help="Never generate this token; repeatable.")
    )
    min_new_tokens: int | None = option(Whole(optional=True, help="Generate no stop token before this many tokens."))
    seed: int | None = option(Whole(least=-SEEDS // 2, optional=True, help="Random seed. [default: random]"))
    grammar: Grammar | None = option(OutputGrammar(optional=True, flag=""))  # noqa: RUF009
    verification: Verification = option(  # noqa: RUF009
        Choice(
            names=get_args(Verification),
            help="Acceptance rule for sampled drafts; spectr needs a bundle built with --tree-rows.",
        ),
        "block",
    )
    stop: str | Iterable[str] | None = option(Texts(optional=True, help="Stop string; repeatable."))
    stop_token_ids: int | Iterable[int] | None = option(TokenIds(optional=True, single=True, flag=""))
    speculate: bool = option(Flag(flag="--plain", help="Decode without speculation."), True)
    num_draft_tokens: int | None = option(
        Whole(
            optional=True,
            help="Draft tokens per round, 0 for none. [default: the bundle's policy; without one, or with "
            "--drafter, as many as pay]",
        )
    )
    num_candidates: int | None = option(
        Whole(
            optional=True,
            help="Candidates per round in addition to draft tokens, for --verification spectr. [default: --tree-rows]",
        )
    )
    drafter: str | None = option(
        Text(
            expected="the name of a drafter",
            help=f"{DRAFTERS_HELP} {DRAFTER_DEFAULT}",
        )
    )
    route: str | None = option(
        Text(expected="the name of a route", help="Route of the request in the bundle's policy.")
    )
    prediction: str | Iterable[int] | None = option(TokenIds(optional=True, or_text=True, flag=""))
    logprobs: int | None = option(Whole(optional=True, flag=""))
    prompt_logprobs: int | None = option(Whole(optional=True, flag=""))
    shown: Iterable[int] = option(TokenIds(flag=""), ())
    cache_salt: str | None = option(Text(flag=""))

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, one.metadata["option"].check(one.name, getattr(self, one.name)))
        least = 1 if self.prompt_logprobs is None else 0
        if self.max_new_tokens < least:
            raise ParameterError(
                f"max_new_tokens is {self.max_new_tokens}; it must be {least} or more", "max_new_tokens"
            )
        if (self.min_new_tokens or 0) > self.max_new_tokens:
            raise ParameterError(
                f"min_new_tokens is {self.min_new_tokens}; "
                f"it must be at most max_new_tokens, which is {self.max_new_tokens}",
                "min_new_tokens",
            )
        if self.num_candidates and self.num_draft_tokens == 0:
            raise ParameterError(
                f"num_candidates is {self.num_candidates}, and num_draft_tokens 0; candidates are additional to draft "
                "tokens, so give only one of the two",
                "num_candidates",
            )
        if self.grammar is not None and self.min_new_tokens:
            raise ParameterError(
                f"min_new_tokens is {self.min_new_tokens} with a grammar, which may end earlier; leave one of them out",
                "min_new_tokens",
            )

    def with_defaults(self, defaults: Defaults) -> SamplingParameters:
        """With what a bundle says where the request does not. A shorter answer, or a grammar, which may end it earlier,
        is not refused for that.
        """
        least = 0 if self.grammar is not None else min(defaults.min_new_tokens, self.max_new_tokens)
        usual = asdict(defaults) | {"min_new_tokens": least}
        return replace(self, **{name: usual[name] for name in UNADJUSTED if getattr(self, name) is None})

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def seeded(self) -> bool:
        """Whether it samples with a seed: then it must be reproducible, and learn nothing from other requests, since
        what those with its seed accepted reveals the noise that judges it.
        """
        return self.seed is not None and not self.greedy

    @property
    def adjusts_logits(self) -> bool:
        """Whether anything before the temperature changes a logit."""
        penalties = (self.repetition_penalty or 1.0, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
        return penalties or bool(self.logit_bias) or bool(self.banned_tokens) or bool(self.min_new_tokens)

    @property
    def needs_host(self) -> bool:
        """Whether the host must run the rounds: to change logits, constrain them, record them, or look drafts up."""
        return self.adjusts_logits or self.grammar is not None or self.logprobs is not None or bool(self.prediction)

    @property
    def device_row(self) -> tuple[float, ...]:
        """What the rules of devices read as `sampling` (`engines/rules.py`), in its order."""
        return self.temperature, min(self.top_k, 2**24), self.top_p, self.min_p  # beyond any vocabulary top_k is off

    def check_tokens(self, vocab_size: int, stop_tokens: Collection[int]) -> None:
        """Raises `ParameterError` for ids that the vocabulary lacks, and if no token is left.

        stop_tokens: those of the request, which are the model's own unless it gives others.
        """
        banned = self.banned_tokens or ()
        named = {"logit_bias": self.logit_bias, "banned_tokens": banned, "shown": self.shown}
        if self.stop_token_ids is not None:
            named["stop_token_ids"] = stop_tokens
        for name, tokens in named.items():
            for token in tokens:
                if not 0 <= token < vocab_size:
                    raise ParameterError(f"{name} names token {token}; ids go from 0 to {vocab_size - 1}", name)
        forbidden = {*banned, *(stop_tokens if self.min_new_tokens else ())}
        if sum(0 <= token < vocab_size for token in forbidden) == vocab_size:
            raise ParameterError(
                f"banned_tokens and the stop tokens cover all {vocab_size} tokens; leave at least one", "banned_tokens"
            )


def with_overrides(params: SamplingParameters | None, overrides: Mapping[str, Any]) -> SamplingParameters:
    """`params`, or the defaults, with fields replaced. Raises `ParameterError`, `TypeError` for an unknown one."""
    known = [one.name for one in fields(SamplingParameters)]
    for name in overrides:
        if name not in known:
            from difflib import get_close_matches

            near = "".join(f"did you mean {match}? " for match in get_close_matches(name, known, 1))
            raise TypeError(f"unknown parameter {name!r}; {near or 'see the fields of SamplingParameters'}".rstrip())
    if params is None:
        return SamplingParameters(**overrides)
    if not isinstance(params, SamplingParameters):
        raise ParameterError(f"params is {params!r}; give a SamplingParameters, or its fields as keywords", "params")
    return replace(params, **overrides) if overrides else params
