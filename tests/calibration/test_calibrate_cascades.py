"""`calibrate` and cascades: chosen where they are 5 % faster than all else, and then followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.calibration.calibrate import calibrate
from specexport.calibration.options import CalibrateOptions
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.session import Session
from support.calibrated import flat_costs, requests
from support.doubles import FakeDecoder
from support.several import several_session

LONG = Contract(capacity=320, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
OPTIONS = CalibrateOptions(bursts=1, drafters=("model", "small", "small:model"))
PRICES = {"small": 0.01, "draft": 0.3}  # of a draft pass, in plain rounds


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The draft is nearly always right, and dear; a smaller one is often right. A row more is a quarter of a pass."""
    drafts = FakeDecoder(LONG, seed=1, noise=0.02), {"small": FakeDecoder(LONG, seed=1, noise=0.12)}
    return several_session(tmp_path, FakeDecoder(LONG, seed=1), *drafts)


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """To be changed by the test; of a row more in a pass of the draft too."""
    for name in ("calibration.calibrate", "runtime.costs.meter", "runtime.policy.files"):
        monkeypatch.setattr(f"specexport.{name}.describe_host", lambda *_: "a host")
    found, real = {**PRICES, "row": 0.005}, CostMeter.costs

    def priced(meter: CostMeter) -> Costs:
        made = flat_costs(found[meter._draft], row=0.25, draft_row=found["row"])
        return replace(real(meter), points=made.points, draft_prefill=0.0, draft_row=made.draft_row)

    monkeypatch.setattr(CostMeter, "costs", priced)
    return found


def test_a_cascade_that_pays_is_chosen_and_followed(session: Session) -> None:
    (route,) = calibrate(session, requests(8, ["code"]), OPTIONS, "x").routes
    assert route.policy.drafter == "small:draft"
    assert 0 < route.policy.unit < 0.7
    best = {one.drafter: one.speedup.value for one in route.candidates if one.num_draft_tokens == 4}
    assert best["small:draft"] > 1.05 * max(best["draft"], best["small"])
    assert not {"ngram:draft", "draft:small"} & set(best)  # nobody asked for them
    again = Session(session.bundle, session.engine)
    found = again.generate(requests(9)[-1].tokens, max_new_tokens=20, route="code").statistics
    assert found.draft_passes < found.drafted
    assert found.guess_passes > 0
    assert list(again.drafts.opened) == ["draft", "small"]
