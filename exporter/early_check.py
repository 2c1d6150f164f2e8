"""What is refused of a model before anything is exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..bundle import Role
from .dialects import Dialect, refuse_engines
from .options import BuildOptions

if TYPE_CHECKING:
    from .checkpoints.checkpoint import Checkpoint


def refuse_states(models: Mapping[Role, Checkpoint], options: BuildOptions, dialects: tuple[Dialect, ...]) -> None:
    """Raises `UnsupportedModelError` for models that keep states, where an engine or a tree cannot have them.

    By the configs alone. What these do not tell is refused when the model is exported.
    """
    from .checkpoints.config import keeps_states
    from .tracing.trees import refuse_trees

    for role, model in models.items():
        if keeps_states(model.config):
            refuse_engines(model.architecture, options.engines, dialects, options.numbers.precision)
            if role == "target" and options.tree_rows:
                refuse_trees(model.architecture, has_states=True)
