"""Adapter declarations: which functions of a kernel library are patched, and how their calls are converted.

An `Adapter` is a list of targets. A `Call` names a function by its import path and has a plain Python function
`convert`, whose parameters are those of the library that matter. It returns the inputs of a definition, or a string:
the reason why no definition describes the call, which then falls through to the original function. Parameters that
`convert` does not name must be at their defaults, so that a parameter of a newer library version is never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
from fib_schema import Definition

from .engines import Engine

Conversion: TypeAlias = "tuple[Hashable, tuple[Any, ...], bool] | str"
"""The result of `Call.convert`: ``(key, values, is_dps)``, or the reason why the call is unsupported.

`Call.describe` maps the key to a definition. The values are the definition's inputs, in order, followed by its
outputs if `is_dps` (destination-passing style: the caller gave a buffer for each of them).
"""
Original: TypeAlias = Callable[..., Any]


@attrs.frozen
class DefinitionRef:
    """The definition that calls with one key compute."""

    name: str
    inputs: tuple[str, ...]
    """Names, in the definition's order."""
    outputs: tuple[str, ...]
    constants: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    """Scalars of the call that the reference has as constants instead of inputs, such as an epsilon."""


@attrs.frozen(kw_only=True)
class Call:
    """A function that computes what a definition describes.

    For a method with `uses_plan`, the first argument of `convert` is the value that `Plan.convert` returned.
    """

    path: str
    """The import path: ``flashinfer.norm.rmsnorm``."""
    convert: Callable[..., Conversion]
    describe: Callable[[Any], DefinitionRef]
    """Maps a key to its definition."""
    key: Callable[..., Hashable] | None = None
    """Makes the key of `convert` alone; takes, by name, any parameters of `convert`. With it, calls of a key that are
    neither routed nor traced are not converted. Worth while if that costs more than the key; not for a method with
    `uses_plan`."""
    finalize: Callable[..., Any] | None = None
    """Makes the caller's result from the definition's outputs (None if they were passed as buffers); it also takes, by
    name, any parameters of `convert`, and writes to inputs that the library modifies in place. Without it, the caller
    gets the only output, or its own buffer if it passed one."""
    added_kernels: tuple[str, ...] = ()
    """The kernels that `finalize` adds to a solution's. No trace contains their time; explanations list them."""
    shadow: Callable[[Original, tuple[Any, ...], dict[str, Any], Sequence[Any]], Any] | None = None
    """Calls the original for a shadow comparison and returns the definition's outputs; takes the original, the call's
    positional and keyword arguments, and the converted values. A keyword argument may have been moved to its position:
    bind the arguments to change one. Without it, the original is expected to return the outputs."""
    is_deterministic: bool = True
    """Whether equal arguments give equal results; if not (sampling), calls are never shadow-compared."""
    ignored: frozenset[str] = frozenset()
    """Parameters that do not change the result, such as backend hints."""
    signature: str | None = None
    """The parameters, for a function that `inspect` cannot read: ``"input, weight, bias=None"``."""
    uses_plan: bool = False
    """Whether this method runs what an earlier call of a `Plan` method set up."""
    changes_plan: bool = False
    """Whether this method also changes settings of the plan, as FlashInfer's ``forward`` does. `convert` then keeps the
    plan's value up to date; a call that does not reach it invalidates the plan."""


@attrs.frozen(kw_only=True)
class Plan:
    """A method that sets up the next runs of an object, such as FlashInfer's ``plan``."""

    path: str
    convert: Callable[..., Any]
    """Takes the object and parameters; returns the value to keep for runs, or the reason why these are unsupported.

    The value has an attribute `is_routable`, which is false if a CUDA graph may replay the runs after a later plan.
    Listeners see such runs. They are routed only if the value has an attribute `buffers` that is not empty: by name of
    an input, the whole buffer that replays read, where runs have the part that is valid now. All tensors of the plan
    must then be buffers that each plan writes to. If runs change the value, it has a method `detached`: a copy that
    changes no object, for explanations."""
    ignored: frozenset[str] = frozenset()
    neutral: Mapping[str, Any] = attrs.field(factory=dict)
    """Parameters that `convert` does not know, each with its default, for versions whose method takes them as keywords
    without stating a default. With any other value, the runs are unsupported."""
    state_attribute: str = attrs.field(default="_plan_info", validator=attrs.validators.matches_re(r"[A-Za-z_]\w*"))
    """The attribute of the object that every plan replaces: reveals a plan that bypassed the patched method."""


@attrs.frozen(kw_only=True)
class InvalidatePlan:
    """A method that changes the plan in ways that no definition describes: runs are unsupported until the next plan."""

    path: str


Target: TypeAlias = "Call | Plan | InvalidatePlan"


@attrs.frozen(kw_only=True)
class Adapter:
    """Connects functions of a library with definitions."""

    name: str
    op_types: tuple[str, ...]
    """The op_types of its definitions."""
    targets: tuple[Target, ...]
    supported: str
    """One line: the calls that are converted."""
    unsupported: str
    """One line: the calls that fall through to the original."""
    is_default: bool = True
    """Whether it is installed unless the user selects adapters."""
    reference_constants: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    """By definition, the constants of its reference. They apply only where the definition itself is not available."""
    engine: Engine | None = None
    """The engine that its functions are of, if they are part of one: they change with each version of it."""
    baseline: Callable[[Definition], str | None] | None = None
    """Returns the source of a solution that calls the library itself; None for an unsupported definition."""
    other_baselines: Mapping[str, Callable[[Definition], str | None]] = attrs.field(factory=dict)
    """The same for other settings that engines choose, by a suffix of the solution's name."""
