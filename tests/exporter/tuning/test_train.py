from __future__ import annotations

import pytest
import torch
from specexport.exporter.tuning.train import Batch, compare_rows

VOCAB, TOP = 40, 8


def rows(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(seed))


def known(logits: torch.Tensor, count: int = TOP) -> Batch:
    """The likeliest tokens of the target's rows, at temperature 1."""
    likeliest = torch.log_softmax(logits, -1).topk(count)
    return Batch(torch.empty(0), torch.empty(0), likeliest.indices, likeliest.values)


def test_the_target_as_its_own_draft_is_accepted_whole() -> None:
    divergence, acceptance = compare_rows(rows(), known(rows()), 1.0)
    assert torch.allclose(acceptance, torch.ones(5), atol=1e-5)
    assert torch.allclose(divergence, torch.zeros(5), atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.4])
def test_with_all_tokens_known_the_terms_are_exact(temperature: float) -> None:
    target, draft = rows(), rows(1)
    divergence, acceptance = compare_rows(draft, known(target, VOCAB), temperature)
    p, q = torch.softmax(target / temperature, -1), torch.softmax(draft / temperature, -1)
    assert torch.allclose(acceptance, torch.minimum(p, q).sum(-1), atol=1e-5)
    assert torch.allclose(divergence, (p * (p.log() - q.log())).sum(-1), atol=1e-4)


def test_all_other_tokens_count_as_one() -> None:
    target, draft = known(rows()), rows(1)
    divergence, acceptance = compare_rows(draft, target, 1.0)
    p, q = target.logprobs.exp(), torch.softmax(draft, -1).gather(1, target.ids)
    p, q = (torch.cat([one, 1 - one.sum(-1, keepdim=True)], -1) for one in (p, q))
    assert torch.allclose(acceptance, torch.minimum(p, q).sum(-1), atol=1e-5)
    assert torch.allclose(divergence, (p * (p.log() - q.log())).sum(-1), atol=1e-4)


def test_the_loss_raises_the_acceptance() -> None:
    target, draft = known(rows()), rows(1).requires_grad_()
    before = float(compare_rows(draft, target, 1.0)[1].detach().mean())
    for _ in range(50):
        compare_rows(draft, target, 1.0)[0].mean().backward()
        with torch.no_grad():
            draft -= 2 * draft.grad
            draft.grad = None
    assert float(compare_rows(draft, target, 1.0)[1].detach().mean()) > before + 0.2
