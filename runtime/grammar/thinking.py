"""An answer after the model's thinking: the grammar begins where the thinking ends, even in mid-round.

The thinking is free text up to its first end, a lazy rule as for tool calls, so what may follow is a function of the
text alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from . import lark


@dataclass(frozen=True)
class Thinking:
    """How a model thinks: opening, thoughts, end, gap, answer. Found in its template: `runtime/text/thinking.py`.

    begun: whether the prompt has the opening, so that the output begins with thoughts; otherwise a model may think or
    not, and `lead` is the whitespace that may come before the opening. gap: what the template writes between end and
    answer. may_stop: whether an output may be thoughts alone. key: the field of a message from which the template reads
    thoughts. atoms: ids of the tokens that the markers name; shown: those of them that have no text of their own. free:
    ids of tokens with names like `<b>`, which grammars know by their ids alone and which are ordinary text here.
    """

    opening: str
    end: str
    lead: str = ""
    gap: str = ""
    begun: bool = False
    may_stop: bool = False
    key: str | None = None
    atoms: tuple[tuple[str, int], ...] = ()
    shown: tuple[int, ...] = ()
    free: tuple[int, ...] = ()


def after_thoughts(thinking: Thinking, answer: dict[str, Any]) -> str:
    """A grammar in llguidance's form. answer: one of its grammars, for what follows the thinking."""
    atoms = dict(thinking.atoms)
    then = "@answer" if thinking.may_stop else f"{lark.literal(thinking.gap, atoms)} @answer"
    lines = [*lark.until("thought", thinking.end, then, atoms, thinking.free, thinking.may_stop), lark.TEXT]
    if thinking.begun:
        start = ["start: thought"]
    else:
        ways = ["opened"]
        leads = [thinking.lead, ""] if thinking.lead else [""]
        if any(name in thinking.opening for name in atoms):
            ways += [lark.literal(lead + thinking.opening, atoms) for lead in leads]
        # Lazy, since an answer that merely begins like an opening is none.
        opened = f"opened[lazy]: {' | '.join(json.dumps(lead + thinking.opening) for lead in leads)}"
        start = [f"start: @answer | ({' | '.join(ways)}) thought", opened]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join([*start, *lines])}, {**answer, "name": "answer"}]})
