"""Which engine runs which precision, and why not."""

from __future__ import annotations

from ...engines.catalogue import ENGINES, Capability


def formats_of(engine: str, capability: Capability | None = None) -> tuple[str, ...]:
    """What `engine` runs, on any GPU or on one of that compute capability."""
    info = ENGINES[engine]
    return tuple(name for name in info.formats if capability is None or info.least.get(name, capability) <= capability)


def refusal(engine: str, precision: str, capability: Capability | None = None, option: str = "--precision") -> str:
    """Why `engine` cannot run it, in one line that says what can; empty when it can."""
    if precision in formats_of(engine, capability):
        return ""
    info = ENGINES[engine]
    known = ", ".join(formats_of(engine, capability))
    if capability is not None and precision in info.formats:
        needed, given = (".".join(map(str, numbers)) for numbers in (info.least[precision], capability))
        where = f"on compute capability {given}; that takes {needed} or later"
    else:
        others = [name for name, other in ENGINES.items() if precision in other.formats]
        where = f"; {precision} runs on {', '.join(others)}" if others else ""
        return f"{option} is {precision}, which engine {engine} cannot run; it runs {known}{where}"
    return f"{option} is {precision}, which engine {engine} cannot run {where}; it runs {known}"
