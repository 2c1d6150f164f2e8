"""The driver of benchmarks/peers: order, ratios, and runners that fail. The runners here are scripts of a few lines."""

from __future__ import annotations

from typing import Any

import pytest
from divergence import Divergence
from figures import first_table, markdown, rows
from interleave import Measured, Request, System, run

STRAY = 9  # a request on which something else took the machine from the peer


class ReferenceLogits:
    """Answers with its own pace, in milliseconds a token."""

    def __init__(self, name: str, pace: dict[bool, float], asked: list[tuple[str, bool, int]]) -> None:
        self.name, self.pace, self.asked = name, pace, asked

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        mode, prompt = request["speculative"], request["prompt_tokens"]
        self.asked.append((self.name, mode, prompt[0]))
        first = len(prompt) * (0.5 if self.name == "ours" else 0.4 + 0.1 * (prompt[0] == STRAY))
        decoded = request["new_tokens"] - 2
        # Every second request is twice as slow for everybody: ratios by request do not see it.
        seconds = self.pace[mode] * decoded * (1 + prompt[0] % 2) / 1e3
        if self.name == "peer" and prompt[0] == STRAY:
            seconds *= 100
        tokens = list(range(request["new_tokens"]))
        return {
            "seconds_first": first,
            "tokens_first": 2,
            "seconds_decode": seconds,
            "cpu_decode": 2 * seconds,
            "tokens": tokens,
            "rounds": decoded // 2,
        }


def compared(paces: dict[str, dict[bool, float]], prompts: list[list[int]]) -> tuple[list[tuple[str, bool, int]], Any]:
    asked: list[tuple[str, bool, int]] = []
    runners = [ReferenceLogits(name, pace, asked) for name, pace in paces.items()]
    systems = [System(runner.name, runner, mode) for mode in (False, True) for runner in runners]
    return asked, run(systems, [Request("any", prompt, new_tokens=12) for prompt in prompts], k=4)


def test_ratios_are_by_request_and_by_mode() -> None:
    _, answers = compared({"ours": {False: 10, True: 4}, "peer": {False: 15, True: 10}}, [[0], [1], [2], [3], [STRAY]])
    found = {(row.name, row.speculative): row for row in rows(answers, "ours")}
    assert found["peer", False].against == pytest.approx(1.5)
    assert found["peer", True].against == pytest.approx(2.5)
    assert found["ours", True].against == pytest.approx(1.0)
    assert found["peer", True].speedup == pytest.approx(1.5)
    assert found["peer", False].speedup is None
    assert found["peer", False].ms == pytest.approx(30)  # of 15, 30, 15, 30, 3000
    assert (found["ours", False].ms_p10, found["ours", False].ms_p90) == pytest.approx((10, 20))
    assert found["peer", True].tokens_per_round == pytest.approx(2.0)
    table = markdown(rows(answers, "ours", {"peer": Divergence(0.0123, 0.9876, 7)}), "ours")
    speculative = "| peer | speculative | 20.00 | 10.00 to 1208.00 | 40.00 | 2.50 | 1.50x | 2.00 | 40.0 | 5 of 5 |"
    assert f"{speculative} 0.0123 | 98.8% |" in table
    assert "| ours | plain | 20.00 | 10.00 to 20.00 | 40.00 | 1.00 |  |  |  |  |  |  |" in table


def test_first_tokens_are_compared_by_request_and_route() -> None:
    prompts = [[1], [2, 2], [STRAY, 2], [3, 3], [4, 4]]
    _, answers = compared({"ours": {False: 10, True: 4}, "peer": {False: 15, True: 10}}, prompts)
    requests = [Request("short" if len(prompt) == 1 else "long", prompt, new_tokens=12) for prompt in prompts]
    assert first_table(answers, requests, "ours").splitlines()[2:] == [
        "| short | ours | 1 | 500 | 500 to 500 | 1.00 |",
        "| short | peer | 1 | 400 | 400 to 400 | 0.80 |",
        "| long | ours | 2 | 1000 | 1000 to 1000 | 1.00 |",
        "| long | peer | 2 | 800 | 800 to 940 | 0.80 |",
    ]


def test_the_warm_up_leaves_no_beginning_of_a_prompt_in_a_cache() -> None:
    asked, _ = compared({"ours": {False: 10, True: 4}}, [[1, 2, 3], [4, 5, 6]])
    assert [first for _, _, first in asked] == [3, 3, 1, 1, 4, 4]


def test_a_text_that_differs_from_the_own_plain_run_is_counted() -> None:
    plain, longer, other = (Measured(tokens, 1, 0.1, 0.1, 0.2, 2) for tokens in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 9)))
    (row,) = (
        row for row in rows({("peer", False): [plain, plain], ("peer", True): [longer, other]}, None) if row.speculative
    )
    assert row.same == 1
    assert row.against is None
