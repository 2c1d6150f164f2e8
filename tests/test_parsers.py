"""What comes from outside, as hypothesis makes it: each parser gives a value or an error of its own, never another."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from specexport.bundle import Manifest
from specexport.calibration.measuring.journal import Journal
from specexport.errors import BundleError, OutputError, ParameterError
from specexport.runtime.policy.cost_model import Costs, MeasuredTime
from specexport.runtime.policy.routes import Evidence, Policy, RoutePolicy
from specexport.runtime.policy.survival import SURVIVAL_VERSION, Curve, Survival
from specexport.runtime.text.prompt_file import read_prompt_lines
from specexport.serve.wire.body import parse as parse_body
from specexport.serve.wire.errors import ApiError
from specexport.serve.wire.requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from specexport.strict import parse, read_json
from support.tool_forms import HERMES, LLAMA, MINISTRAL, MISTRAL, TAGGED, read

few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
JSON_VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8) | some.just(10**400),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
CHANCES = some.floats(0, 1)
TIMES = some.tuples(*[some.floats(1e-9, 1e3)] * 3).map(
    lambda found: MeasuredTime(*(sorted(found)[i] for i in (1, 0, 2)))
)
EVIDENCE = some.none() | some.builds(
    Evidence, some.integers(0, 9), *[some.floats(allow_nan=False, allow_infinity=False)] * 6
)
ROUTES = some.builds(
    RoutePolicy,
    some.sampled_from(["on", "off", "undecided"]),
    some.sampled_from(["model", "ngram"]),
    some.integers(1, 8),
    some.sampled_from(["adaptive", "fixed"]),
    some.lists(CHANCES, min_size=1, max_size=4).map(tuple),
    EVIDENCE,
)
POLICIES = some.builds(
    Policy,
    some.just(1),
    *[some.text(max_size=8)] * 3,
    *[some.floats(0, 2)] * 2,
    ROUTES,
    some.dictionaries(some.text(max_size=8), ROUTES, max_size=3),
)
SURVIVALS = some.builds(
    Survival,
    some.just(SURVIVAL_VERSION),
    some.text(max_size=8),
    some.lists(CHANCES, min_size=1, max_size=4).map(
        lambda found: (Curve(tuple(map(float, range(len(found)))), tuple(found)),)
    ),
)


def in_one_line(error: Exception, place: str = "") -> None:
    assert place in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", [Manifest, Policy, Costs, Survival])
@few
@given(value=JSON_VALUES)
def test_any_json_is_a_bundle_error(kind: type, value: Any) -> None:
    with pytest.raises(BundleError) as refused:
        parse(kind, value, "file.json")
    assert "\n" not in str(refused.value)


@few
@given(value=some.one_of(POLICIES, SURVIVALS), data=some.data())
def test_what_is_written_is_read_again_and_one_wrong_place_is_refused(value: Any, data: some.DataObject) -> None:
    written = json.loads(json.dumps(asdict(value)))
    assert parse(type(value), written, "file.json") == value
    name = data.draw(some.sampled_from(sorted(written)))
    other = data.draw(JSON_VALUES)
    try:
        found = parse(type(value), written | {name: other}, "file.json")
    except BundleError as error:
        in_one_line(error, "file.json")
    else:
        assert type(getattr(found, name)) is type(getattr(value, name))


@few
@given(times=some.lists(some.floats(), min_size=3, max_size=3))
def test_times_are_percentiles_or_refused(times: list[float]) -> None:
    median, p10, p90 = times
    if math.isfinite(p90) and 0 <= p10 <= median <= p90:
        MeasuredTime(median, p10, p90)
    else:
        with pytest.raises(ValueError, match="percentiles"):
            MeasuredTime(median, p10, p90)


@few
@given(content=some.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_file_is_json_or_a_bundle_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    try:
        read_json(path)
    except BundleError as error:
        in_one_line(error, str(path))


LINES = some.fixed_dictionaries(
    {"route": some.text(min_size=1, max_size=5)},
    optional={"prompt": some.text(max_size=9) | JSON_VALUES, "max_new_tokens": some.integers(-1, 5) | JSON_VALUES},
)


@few
@given(lines=some.lists(LINES.map(lambda line: json.dumps(line).encode()) | some.binary(max_size=40), max_size=4))
def test_any_file_of_prompts_is_read_or_refused_by_line(lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n".join(lines))
    for skip in (False, True):
        try:
            found, skipped = read_prompt_lines(path, skip_invalid=skip)
        except ParameterError as error:
            in_one_line(error, str(path))
        else:
            assert found
            assert all(line.prompt for line in found)
            assert skip or not skipped


@few
@given(content=some.binary(max_size=80) | some.just(b'{"journal": 1, "header": {}}\n{"key": "a", "row"'))
def test_any_file_is_a_journal_or_no_journal_and_is_then_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    try:
        with Journal.open(path, {}) as journal:
            journal.add("key", {"a": 1})
        with Journal.open(path, {}) as journal:
            assert journal.finished["key"] == {"a": 1}
    except OutputError:
        assert path.read_bytes() == content


def assert_clients(error: ApiError) -> None:
    assert error.status == 400
    assert json.loads(error.body)["error"]["code"] == error.code


FIELDS = some.sampled_from(
    ["prompt", "messages", "temperature", "stop", "tools", "response_format", "logit_bias", "specexport", "seed", "x"]
)


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest])
@few
@given(
    body=some.binary(max_size=40) | some.dictionaries(FIELDS, JSON_VALUES, max_size=4).map(json.dumps).map(str.encode)
)
def test_any_body_is_a_request_or_the_clients_fault(kind: type, body: bytes) -> None:
    for strict in (False, True):
        try:
            assert isinstance(parse_body(kind, body, strict).request, kind)
        except ApiError as error:
            in_one_line(error)
            assert_clients(error)


MARKS = (
    '<tool_call> </tool_call> {"name":" ","arguments": [TOOL_CALLS] [ARGS] { } [ ] " <call> <p=a> </p> </f> , null 1 <'
)
PIECES = some.sampled_from([*MARKS.split(), '{"name": "', '", "arguments": ', "\\", "\n", " ", "a", "é", ", "])


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL, MINISTRAL, TAGGED])
@few
@given(pieces=some.lists(PIECES | some.text(max_size=3), max_size=12))
def test_any_text_is_read_the_same_wherever_its_pieces_end(form: Any, pieces: list[str]) -> None:
    whole = read(form, ["".join(pieces)])
    assert read(form, pieces) == whole
    assert read(form, list("".join(pieces))) == whole
