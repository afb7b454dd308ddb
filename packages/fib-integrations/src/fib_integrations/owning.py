"""Solutions that are the original in another form: what `baselines` writes.

Where one of them is the best, the call goes to the original: it is planned already, and what it writes in
place is in place.
"""

from __future__ import annotations

from typing import Any

from fib_schema import Definition, FibError

from .adapter import Adapter
from .baselines import baseline_name, baseline_solution


def own_solutions(adapter: Adapter, runtime: Any, definition: Definition) -> frozenset[str]:
    """The names of such solutions in a runtime's data set: at most one."""
    ours = baseline_solution(adapter, definition)
    if ours is None:
        return frozenset()
    try:
        theirs = runtime.table.solution(baseline_name(definition))
    except FibError:
        return frozenset()  # there is none of the name
    return frozenset({ours.name}) if theirs.hash() == ours.hash() else frozenset()
