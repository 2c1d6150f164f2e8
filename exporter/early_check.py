"""What is refused before anything is exported: options that do not fit, and models that no option would make fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..bundle import Role
from ..errors import ParameterError
from .checkpoints.source import find_local, is_gguf
from .dialects import Dialect
from .request.options import BuildOptions
from .request.states import engines_without_states, refuse_engines

if TYPE_CHECKING:
    from .checkpoints.checkpoint import Checkpoint
    from .request.engine_requirements import Targets


def check_request(target: str, draft: str | None, output: str, options: BuildOptions) -> Targets:
    """`BuildOptions.check`, but a model that an engine can never run is named before an option that does not fit it.

    Only of checkpoints on this host. Imports torch only where an option was wrong.
    """
    try:
        return options.check(draft, output)
    except ParameterError:
        if engines_without_states(options.engines):
            from .checkpoints.checkpoint import Checkpoint

            given: dict[Role, str | None] = {"target": target, "draft": draft}
            local = {role: source for role, source in given.items() if source is not None and _is_here(source)}
            refuse_states({role: Checkpoint.find(source) for role, source in local.items()}, options, ())
        raise


def refuse_states(models: Mapping[Role, Checkpoint], options: BuildOptions, dialects: tuple[Dialect, ...]) -> None:
    """Raises `UnsupportedModelError` for models that keep states, where an engine or a tree cannot have them.

    By the configs alone. What these do not tell is refused when the model is exported.
    """
    from .checkpoints.states import keeps_states
    from .tracing.trees import refuse_trees

    for role, model in models.items():
        if keeps_states(model.config):
            refuse_engines(model.architecture, options.engines, dialects)
            if role == "target" and options.tree_rows:
                refuse_trees(model.architecture, has_states=True)


def _is_here(source: str) -> bool:
    return not is_gguf(source) and find_local(source) is not None
