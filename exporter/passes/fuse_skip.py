"""`SimplifiedLayerNormalization(x + skip)` to `SkipSimplifiedLayerNormalization`, where the types allow it.

The norm alone may have a scale of another type than its input, as models in half precision have that scale in fp32. The
fused operator has one type for all of it, and onnxscript's own rule does not look.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import pattern
from onnxscript.rewriter.ort_fusions.skip_normalization import SkipRmsNormFusion


class SameTypeSkipFusion(SkipRmsNormFusion):  # type: ignore[misc]
    def check(self, op: Any, input: ir.Value, gamma: ir.Value, **others: Any) -> Any:
        if gamma.dtype != input.dtype:
            return pattern.MatchResult().fail(f"{gamma.name} is {gamma.dtype}, its input {input.dtype}", gamma)
        return super().check(op, input=input, gamma=gamma, **others)


RULES = pattern.RewriteRuleSet(
    [
        SameTypeSkipFusion.rule("SkipRmsNormPreBias", has_bias=True, bias_pre_add=True),
        SameTypeSkipFusion.rule("SkipRmsNormBias", has_bias=True),
        SameTypeSkipFusion.rule("SkipRmsNorm"),
    ]
)


def fuse_skip_rms_normalization(model: ir.Model) -> int:
    """Returns the number of fused norms."""
    return int(RULES.apply_to_model(model))
