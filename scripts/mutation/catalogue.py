"""All mutants, by the part of the tree that they are in."""

from __future__ import annotations

from .block_mutants import BLOCKS
from .bundle_mutants import BUNDLE
from .calibration_mutants import CALIBRATION
from .command_mutants import COMMANDS
from .eagle3_mutants import READING
from .engine_mutants import ENGINES
from .exporter_mutants import EXPORTER
from .grammar_mutants import GRAMMAR
from .hidden_mutants import HIDDEN
from .hidden_round_mutants import HIDDEN_ROUNDS
from .kernel_mutants import KERNELS
from .loop_mutants import LOOP
from .mtp_mutants import PREDICTING
from .proof_mutants import PROOFS
from .rule_kernel_mutants import RULE_KERNELS
from .sampling_mutants import SAMPLING
from .serve_mutants import SERVE
from .state_mutants import STATES
from .wire_mutants import WIRE

MUTANTS = (
    *SAMPLING,
    *LOOP,
    *GRAMMAR,
    *PREDICTING,
    *PROOFS,
    *BUNDLE,
    *EXPORTER,
    *READING,
    *BLOCKS,
    *HIDDEN,
    *KERNELS,
    *ENGINES,
    *HIDDEN_ROUNDS,
    *RULE_KERNELS,
    *SERVE,
    *STATES,
    *WIRE,
    *CALIBRATION,
    *COMMANDS,
)
