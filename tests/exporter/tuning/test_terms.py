from __future__ import annotations

import pytest
import torch
from specexport.errors import ParameterError
from specexport.exporter.tuning.loss import Terms, loss_of, terms
from specexport.exporter.tuning.options import Shape, TuneOptions
from specexport.exporter.tuning.rows import at_temperature
from support.refusals import refused

VOCAB, TOP = 40, 8


def rows(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(seed))


def known(logits: torch.Tensor, count: int = TOP) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, log-probabilities at temperature 1) of the likeliest."""
    found = torch.log_softmax(logits, -1).topk(count)
    return found.indices, found.values


def test_the_target_as_its_own_draft_is_accepted_whole() -> None:
    target = rows()
    ids, logprobs = known(target)
    found = terms(target, ids, *at_temperature(logprobs, 1.0, VOCAB))
    assert torch.allclose(found.acceptance, torch.ones(5), atol=1e-5)
    assert torch.allclose(found.divergence, torch.zeros(5), atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.4])
def test_with_all_tokens_known_the_terms_are_exact(temperature: float) -> None:
    target, draft = rows(), rows(1)
    ids, logprobs = known(target, VOCAB)
    found = terms(draft / temperature, ids, *at_temperature(logprobs, temperature, VOCAB))
    p, q = torch.softmax(target / temperature, -1), torch.softmax(draft / temperature, -1)
    assert torch.allclose(found.acceptance, torch.minimum(p, q).sum(-1), atol=1e-5)
    assert torch.allclose(found.divergence, (p * (p.log() - q.log())).sum(-1), atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_what_is_known_and_what_is_not_are_one_distribution(temperature: float) -> None:
    ids, logprobs = known(rows())
    top, rest = at_temperature(logprobs, temperature, VOCAB)
    assert torch.allclose(top.exp().sum(-1) + rest.exp(), torch.ones(5), atol=1e-5)
    exact = torch.softmax(rows() / temperature, -1).gather(1, ids)
    assert torch.allclose(top.exp(), exact, atol=0.02)  # the others count as equally likely


def test_few_known_tokens_never_promise_less_than_there_is() -> None:
    """The others count as one token, whose mass may overlap more than theirs do."""
    target, draft = rows(), rows(1)
    ids, logprobs = known(target)
    found = terms(draft, ids, *at_temperature(logprobs, 1.0, VOCAB)).acceptance
    exact = torch.minimum(torch.softmax(target, -1), torch.softmax(draft, -1)).sum(-1)
    assert (found >= exact - 1e-6).all()


def test_the_hybrid_goes_from_divergence_to_acceptance() -> None:
    far = Terms(torch.tensor([2.0]), torch.tensor([0.0]))
    near = Terms(torch.tensor([0.1]), torch.tensor([0.9]))
    assert float(loss_of(far, "lk")) == pytest.approx(2.0)
    weight = float(torch.exp(torch.tensor(-2.7)))
    assert float(loss_of(near, "lk")) == pytest.approx(weight * 0.1 + (1 - weight) * 0.1)
    assert float(loss_of(near, "kl")) == pytest.approx(0.1)


@pytest.mark.parametrize("loss", ["kl", "lk"])
def test_both_losses_raise_the_acceptance(loss: str) -> None:
    target, draft = rows(), rows(1).requires_grad_()
    ids, logprobs = known(target)
    wanted = at_temperature(logprobs, 1.0, VOCAB)
    before = float(terms(draft, ids, *wanted).acceptance.detach().mean())
    for _ in range(50):
        loss_of(terms(draft, ids, *wanted), loss).backward()
        with torch.no_grad():
            draft -= 2 * draft.grad
            draft.grad = None
    assert float(terms(draft, ids, *wanted).acceptance.detach().mean()) > before + 0.2


@pytest.mark.parametrize(
    "given",
    [
        dict(answers=0),
        dict(epochs=-1),
        dict(max_new_tokens=0),
        dict(temperature=-0.1),
        dict(temperature=float("nan")),
        dict(loss="tv"),
        dict(general=1.0),
        dict(rate=0.0),
    ],
)
def test_options_that_cannot_be(given: dict[str, object]) -> None:
    with refused(ParameterError, field=next(iter(given))):
        TuneOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["4", "0x64", "4x100", "4X512", "4x512x2", "-1x64"])
def test_shapes_that_cannot_be(given: str) -> None:
    with refused(ParameterError, given, field="fresh"):
        Shape.parse(given)


def test_a_shape() -> None:
    assert Shape.parse("4x512") == Shape(4, 512)


def test_every_third_answer_is_drawn_at_one() -> None:
    options = TuneOptions(temperature=0.3)
    assert [options.temperature_of(number) for number in range(4)] == [0.3, 0.3, 1.0, 0.3]
