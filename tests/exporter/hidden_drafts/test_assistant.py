"""An assistant that attends to the target's caches: equal to transformers' own, and what sessions draft with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from specexport import Session, load
from specexport.errors import CheckpointError, ParameterError, UnsupportedModelError
from specexport.exporter.build import build
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.assistant import Assistant, AssistantCheckpoint, shared
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.options import BuildOptions
from specexport.exporter.tuning.drafts import load_draft
from support.refusals import refused
from support.tiny import LLAMA, edit_json, make_tokenizer, save_model
from torch import Tensor
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig, PreTrainedModel

VOCAB, WIDTH, WINDOW = LLAMA["vocab_size"], LLAMA["hidden_size"], 8
KINDS = ["sliding_attention", "full_attention"]
GEMMA = LLAMA | dict(num_key_value_heads=1, head_dim=8, global_head_dim=16, sliding_window=WINDOW)


def save_target(folder: Path, **changes: Any) -> Path:
    """Of its five layers the last two read the rows of the second and the third."""
    own = dict(num_hidden_layers=5, layer_types=[KINDS[0], *KINDS, *KINDS], num_kv_shared_layers=2)
    own |= dict(hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB)
    save_model(folder, "gemma4_text", config=GEMMA | own | changes)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_assistant(folder: Path, backbone: int = WIDTH, ordered: bool = False) -> Path:
    torch.manual_seed(1)
    own = dict(hidden_size=16, num_hidden_layers=3, num_kv_shared_layers=3, layer_types=[KINDS[0], KINDS[0], KINDS[1]])
    own |= dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, max_position_embeddings=128)
    sizes = dict(
        backbone_hidden_size=backbone, num_centroids=16, centroid_intermediate_top_k=4, use_ordered_embeddings=ordered
    )
    model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=Gemma4TextConfig(**GEMMA | own), **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(VOCAB))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("gemma") / "target")


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_assistant(tmp_path_factory.mktemp("gemma") / "assistant")


@pytest.fixture(scope="module")
def draft(target: Path, assistant: Path) -> Assistant:
    found = find_draft(str(assistant), find_checkpoint(str(target)))
    assert isinstance(found, AssistantCheckpoint)
    model = found.load("fp32")
    assert isinstance(model, Assistant)
    assert (model.kinds, model.caches) == (tuple(KINDS), (1, 2))
    return model


@torch.no_grad()
def drafted(own: PreTrainedModel, target: PreTrainedModel, tokens: list[int], count: int) -> list[Tensor]:
    """Logits `[vocab]` of draft tokens after `tokens`, by transformers' model, the likeliest token after the other."""
    read = torch.tensor([tokens[:-1]])
    output = target(input_ids=read, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    seen = {kind: tuple(half[:, :, -WINDOW:] for half in pair) for kind, pair in output.shared_kv_states.items()}
    seen["full_attention"] = output.shared_kv_states["full_attention"]  # the library's window is one row wider
    back, token, found = output.hidden_states[-1][:, -1:], tokens[-1:], list[Tensor]()
    for _ in range(count):
        embedded = target.get_input_embeddings()(torch.tensor([token]))
        step = own(
            inputs_embeds=torch.cat([embedded, back], -1),
            position_ids=torch.tensor([[len(tokens) - 2]]),
            shared_kv_states=seen,
        )
        found.append(step.logits[0, -1])
        back, token = step.last_hidden_state, [int(found[-1].argmax())]
    return found


@pytest.mark.parametrize("length", [3, WINDOW, WINDOW + 1, WINDOW + 2, 30])
def test_it_is_transformers_own(length: int, draft: Assistant, assistant: Path) -> None:
    own, text = Gemma4AssistantForCausalLM.from_pretrained(assistant).eval(), torch.arange(2, 2 + length)[None]
    wanted = drafted(own, draft.__dict__["_target"], [0, *text[0].tolist()], 3)
    rows = draft.read_target(text)
    output = draft(text, logits_to_keep=1)
    back = output.feedback[:, -1:]
    for step, logits in enumerate(wanted):
        assert torch.allclose(output.logits[0, -1], logits, atol=1e-5), step
        output = draft.drafted(logits.argmax()[None, None], back, rows)
        back = output.feedback


def test_which_layers_it_reads(tmp_path: Path) -> None:
    alike = find_checkpoint(str(save_target(tmp_path / "alike", global_head_dim=8))).load("fp32")
    assert shared(alike, set(KINDS))[:2] == (tuple(KINDS), (1, 2))


def test_centroids_leave_the_scores_as_they_are(target: Path, tmp_path: Path) -> None:
    """transformers scores the tokens of some; here all are scored."""
    folder = save_assistant(tmp_path / "ordered", ordered=True)
    draft = find_draft(str(folder), find_checkpoint(str(target))).load("fp32")
    own = Gemma4AssistantForCausalLM.from_pretrained(folder).eval()
    text = torch.arange(2, 20)[None]
    (wanted,) = drafted(own, draft.__dict__["_target"], [0, *text[0].tolist()], 1)
    scored = wanted > wanted.min()
    assert 0 < int(scored.sum()) < VOCAB
    assert torch.allclose(draft(text, logits_to_keep=1).logits[0, -1][scored], wanted[scored], atol=1e-5)


MORE = [pytest.param(more, marks=pytest.mark.slow) for more in (dict(precision="int8"), dict(precision="fp16"))]


@pytest.mark.parametrize("options", [dict(), *MORE], ids=str)
def test_sessions_draft_what_it_drafts(
    options: dict[str, Any], target: Path, assistant: Path, draft: Assistant, tmp_path: Path
) -> None:
    """Also after a prompt of which the target has rows, and after rejected drafts."""
    options = dict(precision="fp32") | options
    made = BuildOptions(max_seq_len=64, max_draft_tokens=3, prompt_chunk=2, engines=("onnxruntime",), **options)
    build(str(target), str(assistant), tmp_path / "bundle", made)
    own = Gemma4AssistantForCausalLM.from_pretrained(assistant).eval()
    with load(tmp_path / "bundle") as session:
        reads = session.bundle.manifest.drafts[0].model
        assert reads.row_bytes(session.bundle.manifest.contract) == 0
        start = list(range(2, 22))
        for prompt in (start, [*start, 30, 31], start[:12], [*start[:12], 40]):
            _check(session, prompt, draft if options["precision"] == "fp32" else None, own)


def _check(session: Session, prompt: list[int], draft: Assistant | None, own: PreTrainedModel) -> None:
    wanted: dict[str, Any] = dict(max_new_tokens=16, stop_token_ids=())
    plain = session.generate(prompt, speculate=False, **wanted)
    tokens, rounds = list(prompt), 0
    for chunk in session.stream(prompt, num_draft_tokens=3, drafter="model", **wanted):
        if draft is not None and chunk.draft_tokens:
            target = draft.__dict__["_target"]
            logits = drafted(own, target, tokens, len(chunk.draft_tokens))
            assert [int(one.argmax()) for one in logits] == list(chunk.draft_tokens), tokens
        rounds += bool(chunk.draft_tokens)
        tokens += chunk.tokens
    assert tokens == [*prompt, *plain.tokens]
    assert rounds > 3


def test_a_draft_of_another_target_is_refused(target: Path, tmp_path: Path) -> None:
    other = save_assistant(tmp_path / "wide", backbone=2 * WIDTH)
    with refused(CheckpointError, other, f"width {2 * WIDTH}; the target's is {WIDTH}", field="draft"):
        find_draft(str(other), find_checkpoint(str(target)))
    edit_json(tmp_path / "wide" / "config.json", backbone_hidden_size=WIDTH)
    llama = save_model(tmp_path / "llama")
    make_tokenizer().save_pretrained(llama)
    found = find_draft(str(save_assistant(tmp_path / "narrow")), find_checkpoint(str(llama)))
    with refused(CheckpointError, "full_attention", "choose the draft made for this target", field="draft"):
        found.load("fp32")


def test_it_cannot_be_tuned(target: Path, assistant: Path) -> None:
    with refused(UnsupportedModelError, assistant, "assistant", field="draft"):
        load_draft(None, str(assistant))  # type: ignore[arg-type]  # refused before the bundle is looked at


def test_as_a_target_and_on_other_engines(target: Path, assistant: Path, tmp_path: Path) -> None:
    with refused(CheckpointError, assistant, "give it as --draft", field="target"):
        build(str(assistant), None, tmp_path / "bundle")
    gpu = BuildOptions(engines=("onnxruntime-cuda",), precision="fp16")
    with refused(ParameterError, assistant, "onnxruntime-cuda", "assistant", field="draft"):
        build(str(target), str(assistant), tmp_path / "bundle", gpu)
