"""Explanation of one call: the solution that would serve it, or the reason why the fallback would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .resolver import device_of, not_chosen
from .validation import Rejection

if TYPE_CHECKING:
    from .dispatcher import Dispatcher


def explain_call(dispatcher: Dispatcher, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Explain a call without a plan; nothing is called, built or counted, but the key builder runs.

    A solution that still has to compile for the call is named, although the fallback serves the call until then.

    Args:
        dispatcher: Of the definition.
        args: Inputs by position, followed by outputs or nothing.
        kwargs: Inputs and outputs by name.
    """
    definition, pool = dispatcher.definition, dispatcher.pool
    try:
        merged = definition.merge_kwargs_to_args(args, kwargs)
    except TypeError as error:
        return f"the fallback (arguments): {error}"
    variant = dispatcher.resolver.variants()[len(merged) > len(definition.inputs)]
    key = variant.validator.rejection(merged) or dispatcher.resolver.key(merged)
    if isinstance(key, Rejection):
        return f"the fallback ({key.reason}): {key.problem}"
    ranking = pool.ranking(key, device_of(merged))
    if ranking is None or not ranking.candidates:
        details = "" if ranking is None else f": {ranking.reason}"
        return f"the fallback ({not_chosen(ranking)}): {key}{details}"
    usable = pool.first_usable(ranking)
    if usable is None or pool.find(usable.solution) is None:
        return f"the fallback ({pool.miss_reason(ranking)}): {key}"
    return f"{usable.solution}: {key}"
