"""Whether a smaller output layer pays: the time that it saves per round against the accepted tokens that it loses."""

from __future__ import annotations

from transformers import PreTrainedModel

# What one more row costs a verification pass, of a pass of width 1. An estimate for `auto` alone, from CPUs and GPUs
# of docs/benchmarks.md; `specexport calibrate` measures it.
ROW = 0.1


def share_of_head(draft: PreTrainedModel) -> float:
    """The output layer's fraction of the weights that a pass of the draft reads."""
    head, table = draft.get_output_embeddings().weight, draft.get_input_embeddings().weight
    picked = 0 if head is table else table.numel()  # a pass reads one row of it
    return float(head.numel() / (draft.num_parameters() - picked))


def pays(rates: tuple[float, float], relative: float, saved: float, num_draft_tokens: int) -> bool:
    """rates: the chance of a draft token with the kept ids and with all. relative: the draft's size, of the target's.

    saved: the part of a draft pass. Rounds are of num_draft_tokens, passes take as long as their weights are large.
    """
    verify = 1 + ROW * num_draft_tokens
    cut = _tokens(rates[0], num_draft_tokens) / (num_draft_tokens * relative * (1 - saved) + verify)
    whole = _tokens(rates[1], num_draft_tokens) / (num_draft_tokens * relative + verify)
    return cut > whole


def _tokens(rate: float, num_draft_tokens: int) -> float:
    """Tokens per round, the target's own included (Leviathan et al. 2023, arXiv 2211.17192, equation 1)."""
    return sum(rate**place for place in range(num_draft_tokens + 1))
