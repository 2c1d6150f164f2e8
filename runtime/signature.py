"""Methods that take sampling parameters as keywords: type checkers and `help` read their signature from the
dataclass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from .policy.schedule import Schedule
from .sampling.parameters import SamplingParameters
from .text.encode import Prompt

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Bound(Protocol[P, T_co]):
    def __call__(
        self,
        prompt: Prompt,
        params: SamplingParameters | None = None,
        schedule: Schedule | None = None,
        *args: P.args,
        **overrides: P.kwargs,
    ) -> T_co: ...


class Method(Protocol[P, T_co]):
    def __get__(self, instance: Any, owner: Any) -> Bound[P, T_co]: ...


def takes(fields: Callable[P, object]) -> Callable[[Callable[..., T]], Method[P, T]]:
    """A method whose `**overrides` are the keywords of `fields`."""

    def typed(method: Callable[..., T]) -> Method[P, T]:
        signature = inspect.signature(method)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        keywords = inspect.signature(fields).parameters.values()
        method.__signature__ = signature.replace(parameters=[*named, *keywords])  # type: ignore[attr-defined]
        return cast(Method[P, T], method)

    return typed
