"""Which prompts are trained on, which choose the best state of the draft, and which judge it. By prompt, not token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...calibration.measuring.prompts import Request
from ...errors import ParameterError
from .answers import Answer, Job
from .options import TuneOptions

# Of ten prompts of a route two judge, and one chooses when to stop: judging by what was chosen by would flatter it.
EVERY = 10
JUDGING = (4, 9)
CHOOSING = (7,)
FEWEST_JUDGING = 4
# As many tokens as `specexport calibrate` wants of a survival signal.
LEAST_TOKENS = 200


@dataclass(frozen=True)
class Split:
    """training, choosing, judging: of the user's prompts, and for the last also those that are only to be judged.

    general: prompts whose answers are mixed in.
    """

    training: tuple[Request, ...]
    choosing: tuple[Request, ...]
    judging: tuple[Request, ...]
    general: tuple[Request, ...] = ()

    def jobs(self, options: TuneOptions) -> dict[str, list[Job]]:
        """By part. Prompts that choose and judge are answered once, as they are served."""
        once = {"choosing": self.choosing, "judging": self.judging}
        found = {
            part: [
                Job(f"{part} {place}", request, options.temperature, options.seed + place)
                for place, request in enumerate(requests)
            ]
            for part, requests in once.items()
        }
        for part, requests in (("training", self.training), ("general", self.general)):
            found[part] = [
                Job(
                    f"{part} {place}.{number}",
                    request,
                    options.temperature_of(number),
                    options.seed + 1000 * (number + 1) + place,
                )
                for number in range(options.answers)
                for place, request in enumerate(requests)
            ]
        return found


def split(requests: Sequence[Request], others: Sequence[Request], general: Sequence[Request]) -> Split:
    """others: only judged. Raises `ParameterError` for too few requests."""
    places: Counter[str] = Counter()
    parts: dict[str, list[Request]] = {"training": [], "choosing": [], "judging": []}
    for request in requests:
        place = places[request.route] % EVERY
        places[request.route] += 1
        parts["judging" if place in JUDGING else "choosing" if place in CHOOSING else "training"].append(request)
    needed = EVERY // len(JUDGING) * FEWEST_JUDGING
    if len(parts["judging"]) < FEWEST_JUDGING or not parts["choosing"]:
        raise ParameterError(
            f"there are {len(requests)} prompts, of which {len(parts['judging'])} would judge the draft, expected "
            f"{FEWEST_JUDGING}; give {needed} prompts of a route or more"
        )
    return Split(tuple(parts["training"]), tuple(parts["choosing"]), (*parts["judging"], *others), tuple(general))


def check_length(judging: Sequence[Answer]) -> None:
    """Raises `ParameterError` for answers too short to judge by."""
    found = sum(len(answer.tokens) for answer in judging)
    if found < LEAST_TOKENS:
        raise ParameterError(
            f"the target's answers to {len(judging)} held-out prompts have {found} tokens, expected {LEAST_TOKENS}; "
            "give more prompts or ones with longer answers, or raise --max-new-tokens; the answers are kept"
        )
