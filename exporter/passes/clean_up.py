"""What is run behind every change of a graph: nothing unused, nothing twice, every name once."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

CLEAN_UP = ir.passes.Sequential(
    common_passes.RemoveUnusedNodesPass(),
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    common_passes.DeduplicateInitializersPass(),
    common_passes.CommonSubexpressionEliminationPass(),
    common_passes.NameFixPass(),
)
