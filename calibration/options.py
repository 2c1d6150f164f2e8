"""Options of a calibration, the drafters that it chooses from, and the drafts that it must record for that."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from ..bundle import NO_DRAFT
from ..bundle.drafts import LOOKUP
from ..errors import ParameterError
from ..runtime.drafting.names import all_drafters, check_drafter, model_of
from ..runtime.policy.routes import Mode
from ..runtime.sampling.parameters import SamplingParameters
from ..runtime.session import Session

# Bursts in each measurement of costs. Beside a process that came and went every few seconds, ratios to plain rounds
# were off by 5 % in the mean, and by 9 % if turns are not leveled (SmolLM2-135M in int8, AVX512-VNNI).
BURSTS = 5


@dataclass(frozen=True)
class CalibrateOptions:
    """How to calibrate.

    temperature, top_k, top_p, seed: of the requests, whose drafts are judged by token verification. drafters: to choose
    from; none or `all` for all of them. floor: what the p10 speedup must reach. mode: of the entries of policy.json.
    bursts: in each visit to a context. Raises `ParameterError`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    drafters: tuple[str, ...] = ()
    floor: float = 0.9
    mode: Mode = "adaptive"
    bursts: int = BURSTS

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 2:  # NaN fails as well
            raise ParameterError(
                f"--floor is {self.floor}; it must be from 0 to 2 (1: no slower than plain decoding)", "floor"
            )
        _ = self.sampling  # checks them

    @property
    def sampling(self) -> SamplingParameters:
        return SamplingParameters(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)

    def sampling_with(self, model: str) -> SamplingParameters:
        """Of requests that are drafted with `model`."""
        return self.sampling if model == NO_DRAFT else replace(self.sampling, drafter=model)


def drafters_of(session: Session, options: CalibrateOptions) -> tuple[str, ...]:
    """The drafters to choose from, the preferred one first. Raises `ParameterError` for one that cannot run here."""
    possible, drafters = possible_drafters(session), list(options.drafters)
    for place, name in enumerate(drafters):
        with suppress(ParameterError):
            drafters[place] = check_drafter(name, session.bundle.manifest.draft_names)
        if drafters[place] not in (*possible, "all"):
            raise ParameterError(
                f"--drafter is {name}; with this bundle and engine it must be one of {', '.join(possible)}, or all",
                "drafter",
            )
    return possible if "all" in drafters or not drafters else tuple(dict.fromkeys(drafters))


def possible_drafters(session: Session) -> tuple[str, ...]:
    """The drafters that the session can run, first the one that drafts without a policy. If the device runs whole
    rounds, only the model, since lookups run on the host.
    """
    names = session.drafts.names
    if names and session.engine.rounds is not None:
        return names[:1]
    usual = f"{LOOKUP}+{names[0]}" if names else LOOKUP
    return (usual, *(name for name in all_drafters(names) if name != usual))


def models_of(session: Session, options: CalibrateOptions) -> list[str]:
    """The drafts to record with: the first, and those that the drafters to choose from use."""
    used = map(model_of, drafters_of(session, options))
    return list(dict.fromkeys((session.drafts.first, *(model for model in used if model is not None))))
