from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from specexport.errors import BundleError
from specexport.runtime.policy.cost_model import COSTS_VERSION, CostPoint, Costs, MeasuredTime
from specexport.strict import parse
from support.refusals import refused


def time(seconds: float) -> MeasuredTime:
    return MeasuredTime(seconds, seconds * 0.9, seconds * 1.1)


def point(context: int, scale: float) -> CostPoint:
    verify = (1.0 * scale, 1.2 * scale, 1.5 * scale)
    return CostPoint(
        context,
        (time(1.1 * scale), time(1.5 * scale), time(2.0 * scale)),
        time(0.2 * scale),
        tuple(map(time, verify)),
        (time(0.1),) * 3,
    )


NOTHING = MeasuredTime(0.0, 0.0, 0.0)
COSTS = Costs(COSTS_VERSION, "bundle", "host", "onnxruntime", 0, "now", 0.01, 0.001, (point(100, 1.0), point(300, 2.0)))


def test_between_two_contexts_on_the_line() -> None:
    at = COSTS.at(150)
    assert at.plain == pytest.approx(1.1 * 1.25)
    assert at.rounds == pytest.approx((1.375, 1.875, 2.5))
    assert at.draft == pytest.approx(0.25)
    assert at.verify == pytest.approx((1.25, 1.5, 1.875))
    assert at.host == pytest.approx((0.1, 0.1, 0.1))


@pytest.mark.parametrize(("context", "scale"), [(1, 1.0), (100, 1.0), (300, 2.0), (5000, 2.0)])
def test_level_beyond_the_measured_contexts(context: int, scale: float) -> None:
    assert COSTS.at(context).plain == pytest.approx(1.1 * scale)


def test_a_looked_up_round_has_no_draft_passes() -> None:
    assert COSTS.at(100).looked_up(2) == pytest.approx(1.5 + 0.1)


def test_it_survives_json() -> None:
    assert (
        parse(Costs, asdict(COSTS) | {"points": [_listed(asdict(point)) for point in COSTS.points]}, "costs.json")
        == COSTS
    )


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def test_damage_is_named() -> None:
    good = point(100, 1.0)
    for damage in (
        lambda: MeasuredTime(1.0, 2.0, 3.0),
        lambda: MeasuredTime(float("nan"), 0.0, 1.0),
        lambda: MeasuredTime(1.0, 0.0, float("inf")),
        lambda: replace(good, verify=good.verify[:2]),
        lambda: replace(good, rounds=(NOTHING, *good.rounds[1:])),
        lambda: replace(good, rounds=(*good.rounds[:2], NOTHING)),
        lambda: replace(good, verify=(good.verify[0], NOTHING, good.verify[2])),
        lambda: replace(COSTS, draft_prefill=float("nan")),
        lambda: replace(COSTS, target_prefill=-1.0),
        lambda: replace(good, context=0),
        lambda: replace(COSTS, points=()),
        lambda: replace(COSTS, points=COSTS.points[::-1]),
        lambda: replace(COSTS, schema_version=1),
    ):
        with refused(ValueError):
            damage()
    with refused(BundleError, field="costs.json.points"):
        parse(Costs, {key: value for key, value in asdict(COSTS).items() if key != "points"}, "costs.json")


def test_a_round_takes_its_passes_of_the_draft_and_its_rows() -> None:
    dear = replace(point(100, 1.0), rounds=(time(1.1), time(1.8), time(2.2)))  # the first pass takes 0.5, a second 0.1
    at = replace(COSTS, points=(dear,)).at(100)
    for tokens in range(3):
        for passes, drafting in enumerate((0.0, 0.5, 0.6)):
            assert at.seconds(tokens, passes) == pytest.approx(drafting + at.looked_up(tokens))
        assert at.seconds(tokens, tokens) == at.rounds[tokens]
