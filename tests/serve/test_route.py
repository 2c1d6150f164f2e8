"""Requests that name a route of the policy, or one that it does not have."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.routes import POLICY_VERSION, Policy, RoutePolicy
from specexport.serve import ServerSettings
from support.serving import served, slow_session
from support.slow_server import CONTRACT, MESSAGES

OFF = RoutePolicy("off", "ngram", 0, "fixed", (0.5,), None)


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "Hello"})]
)
def test_a_route_without_effect_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, asked: dict[str, object]
) -> None:
    """To the client, and in the log."""
    caplog.set_level(logging.INFO, "specexport.access")
    session, _ = slow_session(tmp_path, CONTRACT, 0.0)
    policy = Policy(POLICY_VERSION, "x", "fake", "", 0.0, 0.9, OFF, {"code": OFF})
    with served(session, ServerSettings(strict_fields=True)) as client:
        for known, route, told in (
            (None, "code", "specexport.route"),
            (policy, "cod", "specexport.route"),
            (policy, "code", None),
            (policy, None, None),
        ):
            session.decisions = Decisions(known)
            fields = {**asked, "max_tokens": 2, "specexport": {} if route is None else {"route": route}}
            status, headers, _ = client.ask("POST", path, fields)
            assert (status, headers.get("x-specexport-ignored")) == (200, told)
    logged = [json.loads(record.message).get("ignored") for record in caplog.records]
    assert logged == ["specexport.route", "specexport.route", None, None]
