"""What an adapter declares: which functions of a library compute what definitions describe, and how.

An `Adapter` is a list of targets. Each target names a function by its path and gives a plain function
that *reads* a call: its parameters are named like those of the library that matter, and it returns what
the call computes, or a sentence why no definition describes it. Parameters that it does not name must be left
at their defaults, so that what a new version of the library adds is never overlooked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
from fib_schema import Definition

Reading: TypeAlias = "tuple[Hashable, tuple[Any, ...], bool] | str"
"""What a call computes, or why it is not covered.

A key that decides on the definition; the definition's inputs, in order, and its outputs behind them where the
caller passed all of them as buffers; whether it did.
"""
Original: TypeAlias = Callable[..., Any]


@attrs.frozen
class Described:
    """The definition of calls with one key."""

    name: str
    inputs: tuple[str, ...]
    """Names, in the definition's order."""
    outputs: tuple[str, ...]
    baked: Mapping[str, float] = attrs.field(factory=dict)
    """Scalars of the call that are no inputs, because the reference has them built in."""


@attrs.frozen(kw_only=True)
class Call:
    """A function whose calls compute what a definition describes.

    A method's `read` comes with `reads_plan`: its first argument then is what `Plan.read` made.
    """

    path: str
    """Where it is: ``flashinfer.norm.rmsnorm``."""
    read: Callable[..., Reading]
    describe: Callable[[Any], Described]
    """The definition of a key."""
    give: Callable[..., Any] | None = None
    """Makes what the caller gets of the definition's outputs (None if they were passed): takes them, and by name those
    parameters of `read` that it wants. It writes to inputs what the library writes there. None: the caller gets the
    one output, its own buffer if it passed that."""
    shadow: Callable[[Original, tuple[Any, ...], dict[str, Any], Sequence[Any]], Any] | None = None
    """Calls the original and returns the definition's outputs, for calls that are made both ways: takes it, the call's
    arguments, and the values that `read` gave. What came by keyword may be among those by position, with all that were
    left out: bind them to set one. None: the original returns the outputs itself."""
    is_comparable: bool = True
    """Whether two calls with the same arguments give the same; samples do not, and are never made both ways."""
    ignored: frozenset[str] = frozenset()
    """Parameters that do not change what is computed, such as hints to a backend."""
    signature: str | None = None
    """The parameters, where the function does not tell them: ``"input, weight, bias=None"``."""
    reads_plan: bool = False
    """Whether it is a method that computes what another one has planned."""


@attrs.frozen(kw_only=True)
class Plan:
    """A method that tells an object what its next calls will be."""

    path: str
    read: Callable[..., Any]
    """Takes the object and parameters; returns what is to be remembered, or why such calls are not covered. What it
    returns has an attribute `is_routable`."""
    ignored: frozenset[str] = frozenset()
    stamp: str = attrs.field(default="_plan_info", validator=attrs.validators.matches_re(r"[A-Za-z_]\w*"))
    """The object's attribute that each plan replaces: shows that it was planned by other means since."""


@attrs.frozen(kw_only=True)
class Unplan:
    """A method that changes what was planned, in ways that no definition describes."""

    path: str


Target: TypeAlias = "Call | Plan | Unplan"


@attrs.frozen(kw_only=True)
class Adapter:
    """Connects functions of a library with definitions."""

    name: str
    op_types: tuple[str, ...]
    """The kinds of definitions that it knows."""
    targets: tuple[Target, ...]
    covers: str
    """What is covered, in a line."""
    leaves: str
    """What goes to the original, in a line."""
    is_default: bool = True
    """Whether it is installed unless somebody says otherwise."""
    declared: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    """By definition, the scalars that its reference has built in. A reference at hand is believed before this."""
    baseline: Callable[[Definition], str | None] | None = None
    """The source of a solution that calls the library itself; None for a definition that it does not cover."""
