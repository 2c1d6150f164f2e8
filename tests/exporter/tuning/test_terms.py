from __future__ import annotations

import pytest
import torch
from specexport.errors import ParameterError
from specexport.exporter.tuning.judge import Terms, at_temperature, loss_of, terms
from specexport.exporter.tuning.options import TuneOptions
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
