"""Faults in the kernels of the verification rules, and in how they are launched."""

from __future__ import annotations

from .mutant import Mutant

KERNELS, LAUNCHES = "engines/cuda/rules.cu", "engines/cuda/rule_kernels.py"
TESTS = ("tests/engines/cuda/test_rule_kernels.py",)

RULE_KERNELS = (
    Mutant(
        "the token rule's kernel accepts at equality",
        KERNELS,
        "noise[count] * judged.draft[count] < judged.target[count]",
        "noise[count] * judged.draft[count] <= judged.target[count]",
        TESTS,
    ),
    Mutant(
        "the block rule's kernel draws what follows by the whole target",
        KERNELS,
        "float scale = by_block ? judged.ratios[row] : 1.0f, mine[EACH];",
        "float scale = 1.0f, mine[EACH];",
        TESTS,
    ),
    Mutant(
        "the block rule's chances are of the rows before",
        KERNELS,
        "float chance = judged.ratios[count];",
        "float chance = judged.ratios[count - 1];",
        TESTS,
    ),
    Mutant(
        "rows that are no numbers are accepted",
        KERNELS,
        "count[0] = min(num_accepted, num_sound);",
        "count[0] = num_accepted;",
        TESTS,
    ),
    Mutant(
        "a NaN is looked for in the largest logit",
        KERNELS,
        "if (!(logit <= LARGEST)) wrong += 1.0f;",
        "if (logit > LARGEST) wrong += 1.0f;",
        TESTS,
    ),
    Mutant("a draw goes by the sum of all blocks", KERNELS, "            goal -= sum;\n", "", TESTS),
    Mutant("a draw takes tokens without mass", KERNELS, "if (!(masses[index] > 0.0f)) continue;", "", TESTS),
    Mutant(
        "top-k keeps one more",
        KERNELS,
        "total(masses + first, blocks, 1) : sampling[1];",
        "total(masses + first, blocks, 1) : sampling[1] + 1;",
        TESTS,
    ),
    Mutant(
        "a top-p that is 0 in float32 leaves nothing",
        KERNELS,
        "fmaxf(sampling[2], TINY) * total",
        "sampling[2] * total",
        TESTS,
    ),
    Mutant(
        "a nucleus forgets what top-k left",
        KERNELS,
        "kept.cut = max(cut, now.least);",
        "kept.cut = cut;",
        TESTS,
    ),
    Mutant(
        "min-p is left out",
        KERNELS,
        "kept.floor = logf(sampling[3]), ",
        "",
        TESTS,
    ),
    Mutant(
        "the search keeps only its last bits",
        KERNELS,
        "found = search.found | cut << shift;",
        "found = cut << shift;",
        TESTS,
    ),
    Mutant("-0 and 0 are not equal", KERNELS, "__float_as_uint(value + 0.0f)", "__float_as_uint(value)", TESTS),
    Mutant(
        "the last of a tie is the argmax",
        KERNELS,
        "other_id < best_id[tid]",
        "other_id > best_id[tid]",
        TESTS,
    ),
    Mutant("a confidence is of the first block", KERNELS, "best.sum += sums[block]", "best.sum = sums[block]", TESTS),
    Mutant(
        "rows beyond the threads are left out",
        KERNELS,
        "row <= k; row += THREADS) {\n        judged.sums",
        "row <= k; row += 1024) {\n        judged.sums",
        TESTS,
    ),
    Mutant("a search reads its own sums", LAUNCHES, "tried.reverse()", "pass", TESTS),
    Mutant("top-p is not searched for", LAUNCHES, "(0, 1)", "(0, 0)", TESTS, "RuleKernels._truncate"),
    Mutant(
        "a device loads a module for each kernel",
        "engines/cuda/device.py",
        "module = self._modules.get(ptx)",
        "module = None",
        ("tests/engines/cuda/test_device.py",),
    ),
    Mutant(
        "TensorRT-RTX is said to run on every GPU newer than the oldest",
        "engines/tensorrt/rtx.py",
        "capability > max(numbers)",
        "capability > min(numbers)",
        ("tests/engines/tensorrt/test_rtx.py",),
    ),
)
