"""Options of a calibration."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ParameterError
from ..runtime.policy.routes import Mode
from ..runtime.sampling.parameters import SamplingParameters

# Number of bursts in each measurement of costs.
BURSTS = 6


@dataclass(frozen=True)
class CalibrateOptions:
    """How to calibrate.

    temperature, top_k, top_p, seed: of the requests, whose drafts are judged by token verification. drafters: to choose
    from; none or `all` for all of them. floor: what the p10 speedup must reach. mode: of the entries of policy.json.
    bursts: see `CostMeter.measure`. Raises `ParameterError`.
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
