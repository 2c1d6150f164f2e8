"""Faults in MTP layers: what others got wrong, and what a refusal is for."""

from __future__ import annotations

from .mutant import Mutant

MTP, TENSORS, BASE, CUT = (f"exporter/hidden_drafts/{name}.py" for name in ("mtp", "mtp_tensors", "base", "vocabulary"))
OF_MTP, OF_TENSORS, OF_CUT = (
    (f"tests/exporter/hidden_drafts/test_{name}.py",) for name in ("mtp", "mtp_tensors", "cut_vocabulary")
)

PREDICTING = (
    Mutant("the halves of the projection swapped", MTP, "if self.hidden_first", "if not self.hidden_first", OF_MTP),
    Mutant("a layer that never takes the hidden states first", MTP, "if self.hidden_first", "if False", OF_MTP),
    Mutant(
        "an embedding that is not normed",
        MTP,
        "[self.enorm(embedded), self.hnorm(hidden)]",
        "[embedded, self.hnorm(hidden)]",
        OF_MTP,
    ),
    Mutant(
        "norms of the embedding and the hidden states swapped",
        MTP,
        "[self.enorm(embedded), self.hnorm(hidden)]",
        "[self.hnorm(embedded), self.enorm(hidden)]",
        OF_MTP,
    ),
    Mutant("feedback normed once more", MTP, "return output, output", "return output, self.hnorm(output)", OF_MTP),
    Mutant(
        "feedback that is what the block read",
        MTP,
        "return output, output",
        "return output, joined",
        OF_MTP,
    ),
    Mutant("hidden states of the first layer", MTP, "taps = (LAST,)", "taps = (0,)", OF_MTP),
    Mutant(
        "a cache that the block does not see",
        MTP,
        "cache = attention['past_key_values']",
        "cache = None",
        OF_MTP,
    ),
    Mutant(
        "towers of other inputs taken for MTP layers",
        TENSORS,
        "if not after or PARTS.keys() & layer.keys()",
        "if True",
        OF_MTP,
    ),
    Mutant("the last layer taken for one after it", TENSORS, "number >= count", "number >= count - 1", OF_TENSORS),
    Mutant(
        "a block like the last layer, whatever that is",
        MTP,
        "one == kind",
        "bool(one)",
        OF_MTP,
    ),
    Mutant("a block of another kind than is said", MTP, 'getattr(text, "mtp_layer_types", None)', "None", OF_MTP),
    Mutant("experts in every block", MTP, "len(types) if dense else 0", "0", OF_MTP),
    Mutant("ERNIE's parts unread", TENSORS, "ERNIE.sub(_number_first, name)", "name", OF_MTP),
    Mutant("a dense block after dense first layers", MTP, "first_k_dense_replace=first", "first_k=first", OF_MTP),
    Mutant("several layers taken for one", TENSORS, "projections > 1", "False", OF_MTP),
    Mutant("states in the block are let through", MTP, "keeps_states(block_config(target.config))", "False", OF_MTP),
    Mutant("a tensor beside the layers is not read", TENSORS, "if rest not in BESIDE", "if False", OF_MTP),
    Mutant("missing weights stay random", MTP, "if missing:", "if missing and False:", OF_MTP),
    Mutant("a part of another shape", TENSORS, "(theirs := stored[parts[part]][1]) != shape", "False", OF_MTP),
    Mutant(
        "a layer that does not fit is refused late",
        MTP,
        "load_decoder(target, stored, torch.bfloat16)",
        "None",
        OF_MTP,
    ),
    Mutant("the cut vocabulary is not in the digest", MTP, "f'{self.target.digest} mtp {self.kept}'", "'mtp'", OF_MTP),
    Mutant("stop tokens are not kept", CUT, "for token in always if token < vocab_size", "for token in ()", OF_CUT),
    Mutant("the rarest tokens are kept", CUT, "(-counts[token], token)", "(counts[token], token)", OF_CUT),
    Mutant("of equally frequent tokens the larger", CUT, "(-counts[token], token)", "(-counts[token], -token)", OF_CUT),
    Mutant(
        "the first rows of the head instead",
        BASE,
        "linear.weight.data[kept]",
        "linear.weight.data[: len(kept)]",
        OF_CUT,
    ),
)
