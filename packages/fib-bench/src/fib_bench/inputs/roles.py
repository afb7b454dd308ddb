"""Roles of inputs: what the values of an input mean for its op.

The role decides which values are valid, how a distribution applies, how fresh values are mixed
(`variation`) and how integers are redrawn (`redrawing`). `rules` maps names of inputs to roles.
"""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """Meaning of the values of an input."""

    PLAIN = "plain"
    """Numbers of moderate size: activations, caches, states."""
    WEIGHTS = "weights"
    """Plain numbers scaled so that sums stay near 1."""
    SCORES = "scores"
    """Numbers that select experts: ties are ambiguous, and the rows determine the load of each expert."""
    FACTORS = "factors"
    """Numbers that are valid one by one: scales, decays, thresholds, temperatures."""
    ROWS = "rows"
    """Rows that are valid as a whole, in any order of their elements: probabilities, keys of length 1."""
    FIXED = "fixed"
    """Values that must not change: masks, scalars, rotary caches, integers of unknown meaning."""

    OFFSETS = "offsets"
    """Cumulative lengths of requests (indptr, cu_seqlens): non-decreasing, ending at a total."""
    LENGTHS = "lengths"
    """One length per request: sequence lengths, tokens in the last page."""
    PAGES = "pages"
    """Page, block or slot numbers of a pool; negative numbers are padding."""
    SLOTS = "slots"
    """Token slots of a paged cache: page number * page size + position in the page."""
    SELECTIONS = "selections"
    """Token slots of a paged cache selected per row (sparse attention); negative numbers are padding."""
    EXPERTS = "experts"
    """Expert numbers per token, different within a token."""
    POSITIONS = "positions"
    """Positions of tokens in their sequences."""
    COUNTS = "counts"
    """Numbers of candidates (top-k)."""
    TOKENS = "tokens"
    """Token numbers of a vocabulary."""
    SEEDS = "seeds"
    """Seeds of random number generators: any non-negative integer."""
    BYTES = "bytes"
    """int8 data, valid for any byte."""

    @property
    def is_index(self) -> bool:
        """Whether the values are structural integers, which other inputs are derived from."""
        return self in _INDEX_ROLES


_INDEX_ROLES = frozenset(
    {
        Role.OFFSETS, Role.LENGTHS, Role.PAGES, Role.SLOTS, Role.SELECTIONS, Role.EXPERTS, Role.POSITIONS,
        Role.COUNTS, Role.TOKENS, Role.SEEDS,
    }
)  # fmt: skip
