"""Evaluator of top-k ops. Indices of the largest scores, compared as sets, row by row.

Where the scores are an input, an index is right if its score is among the k best, and of equal
scores any may be taken. Where they are computed on the way (an indexer's), two right kernels differ
in a few indices whose scores are next to the last that is chosen, so a large share must be the
reference's. In any case each index comes once, lies in range, and rows that are short are padded
where the reference pads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from ..checking.comparison import Comparison, OutputCheck
from .protocol import BuiltIn, Case, Check, Tensors, Verdict, default_parts, index_outputs
from .scaled import scaled_part

_TIE = 2.0**-20
"""Scores nearer to each other than this, relative, count as equal."""
_WORST_ROW, _MOST_OF_ROW = 5.0, 0.5
"""A single row may lack five times the share that all rows together may, but never more than half of its indices. One
index may be lacking in any case; rows of a single index then have only the limit over all rows."""


def _are_best(chosen: torch.Tensor, values: torch.Tensor, length: torch.Tensor | None) -> bool:
    """Whether no candidate of a row is better than the selected ones; synchronizes the device."""
    is_real = (chosen >= 0) & (chosen < values.shape[1])
    if bool((chosen >= values.shape[1]).any()):
        return False
    scores = values.double()
    places = torch.where(is_real, chosen, 0)
    least = scores.gather(1, places).masked_fill(~is_real, torch.inf).amin(dim=1)
    if length is not None:
        beyond = torch.arange(values.shape[1], device=values.device) >= length.reshape(-1, 1)
        scores = scores.masked_fill(beyond, -torch.inf)
    is_taken = torch.zeros_like(scores).scatter_add_(1, places, is_real.double()) > 0
    rest = scores.masked_fill(is_taken, -torch.inf).amax(dim=1)
    return bool((rest <= least).all())


def _differ(scores: torch.Tensor, found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Mask of the chosen scores, ``[rows, k]`` from the best to the worst, that are not those expected."""

    def ordered(indices: torch.Tensor) -> torch.Tensor:
        is_real = (indices >= 0) & (indices < scores.shape[1])
        values = scores.gather(1, torch.where(is_real, indices, 0)).double()
        return values.masked_fill(~is_real, -torch.inf).sort(dim=1, descending=True).values

    ours, theirs = ordered(found), ordered(expected)
    return (ours != theirs) & ~((ours - theirs).abs() <= _TIE * theirs.abs())


@attrs.frozen(eq=False)
class Rows:
    """The layout of an output of indices, and the scores if they are known."""

    width: int
    scores: torch.Tensor | None
    """``[rows, candidates]``"""


@attrs.frozen(eq=False)
class IndexSets(Check):
    """Outputs of indices, each row a set, and the values beside them."""

    parts: Mapping[str, OutputCheck] = attrs.field()
    rows: Mapping[str, Rows]
    """Checked rows of each output of indices."""
    beside: Mapping[str, str]
    """Outputs with a value per index, and the output that this is in."""
    overlap: float
    """The share of indices that must be the reference's, where scores are not known."""

    def to_extra(self) -> dict[str, Any]:
        """The fields of a trace."""
        sets = {
            name: {"compared_by": "overlap", "required_overlap": self.overlap}
            if rows.scores is None
            else {"compared_by": "score"}
            for name, rows in self.rows.items()
        }
        return super().to_extra() | sets

    def compare(self, found: Tensors, expected: Tensors) -> Verdict:
        """Compare sets, then the values beside them, then the rest."""
        comparisons, problems = [], []
        for name in self.rows:
            comparison, told = self._compare_sets(name, found[name], expected[name])
            comparisons.append(comparison)
            problems += [f"output {name!r}: {problem}" for problem in told]
        for name, part in self.parts.items():
            wanted = expected[name]
            if name in self.beside:
                indices = self.beside[name]
                wanted = _aligned(found[indices], expected[indices], wanted, self.rows[indices].width)
            comparison = part.compare(found[name], wanted)
            comparisons.append(comparison)
            if not part.is_right(comparison):
                problems.append(comparison.explain())
        return Verdict(tuple(comparisons), tuple(problems))

    def _compare_sets(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> tuple[Comparison, list[str]]:
        """Compare an output of indices; waits for the device once."""
        rows = self.rows[name]
        if not expected.numel():
            return Comparison(name, 0, 0), []
        a, b = (tensor.long().reshape(-1, rows.width) for tensor in (found, expected))
        by_row = _count(a, b, rows.scores).cpu()
        count, strange, *others = by_row.sum(dim=1).tolist()
        problems = [f"{number} {kind}" for number, kind in zip(others, _KINDS, strict=True) if number]
        most, row = (int(found) for found in by_row[1].max(dim=0))
        where = f"worst in row {row}, where {most} are"
        if rows.scores is not None and strange:
            problems.append(f"{strange} of {count} indices have other scores than the best; {where}")
        elif rows.scores is None and self._lacks(strange, count, most, rows.width):
            text = f"{strange} of {count} indices are not among the reference's; {where}"
            problems.append(f"{text}; the overlap is {1 - strange / max(count, 1):.4f}, required: {self.overlap}")
        return Comparison(name, count, max(strange, *others)), problems

    def _lacks(self, strange: int, count: int, most: int, width: int) -> bool:
        allowed = 1 - self.overlap
        most_in_row = max(1.0, min(_WORST_ROW * allowed, _MOST_OF_ROW) * width)
        return strange > allowed * count or most > most_in_row


_KINDS = (
    "entries are padding where the reference has none, or the reverse",
    "indices lie beyond all candidates",
    "indices occur twice in their row",
)
"""The last three rows of `_count`."""


def _count(found: torch.Tensor, expected: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
    """Compare ``[rows, k]``: ``[5, rows]``, the indices expected, those that are strange, and those of `_KINDS`.

    Strange ones are none of the reference's, or have scores that none of these has.
    """
    is_real = expected >= 0
    padded = torch.where(is_real, found < 0, found != expected)
    outside = torch.zeros_like(is_real) if scores is None else found >= scores.shape[1]
    is_lacking = is_real & ~padded & ~_is_member(found, expected)
    strange = is_lacking if scores is None else _differ(scores, found, expected)
    twice = (_repeats(found) - _repeats(expected)).clamp(min=0)
    by_row = [mask.sum(dim=1) for mask in (is_real, strange, padded, outside)]
    return torch.stack([*by_row, twice])


def _is_member(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Mask of the indices that occur in the same row of the expected indices."""
    ordered = expected.sort(dim=1).values
    places = torch.searchsorted(ordered, found.contiguous()).clamp_(max=ordered.shape[1] - 1)
    return ordered.gather(1, places) == found


def _repeats(indices: torch.Tensor) -> torch.Tensor:
    ordered = indices.sort(dim=1).values
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).sum(dim=1)


def _aligned(found: torch.Tensor, expected: torch.Tensor, values: torch.Tensor, width: int) -> torch.Tensor:
    """The expected values in the order of the indices found; for one that is not expected, the least of its row."""
    if not values.numel():
        return values
    a, b, rows = found.long().reshape(-1, width), expected.long().reshape(-1, width), values.reshape(-1, width)
    ordered, order = b.sort(dim=1)
    places = torch.searchsorted(ordered, a).clamp_(max=width - 1)
    own = rows.gather(1, order.gather(1, places))
    least = rows.masked_fill(b < 0, torch.inf).amin(dim=1, keepdim=True)
    aligned = torch.where(ordered.gather(1, places) == a, own, least)
    return torch.where(b < 0, rows, aligned).view_as(values)


OVERLAP = 0.98
"""Share of all chosen indices that must be the reference's where scores are unknown.

Scores that are rounded to bfloat16 move about one index in 400 across the boundary (2048 of 8192);
leaving out one of 16 heads moves one in 12.
"""


class TopK(BuiltIn):
    """Overlap of sets; by score where scores are known."""

    name = "top_k"

    def check(self, case: Case) -> IndexSets:
        """Check indices as sets, the values beside them in their order, everything else by the default rule."""
        names = index_outputs(case.definition)
        beside = _beside(case, names[0])
        parts = default_parts(case, case.expected.keys() - set(beside) - set(names))
        parts |= {name: scaled_part(name, case.expected[name], case.config) for name in beside}
        return IndexSets(
            parts,
            rows={name: Rows(_width(name, case), _scores(name, case)) for name in names},
            beside=dict.fromkeys(beside, names[0]),
            overlap=case.config.required_matched_ratio or OVERLAP,
        )


def _beside(case: Case, indices: str) -> list[str]:
    shape = case.expected[indices].shape
    return [n for n, t in case.expected.items() if t.dtype.is_floating_point and t.shape == shape and t.itemsize > 1]


def _width(name: str, case: Case) -> int:
    """The number of indices of one choice: one where each row of an input gets a single index."""
    spec = case.definition.outputs[name]
    inputs = case.definition.inputs.values()
    is_single = any("float" in s.dtype and s.shape and spec.shape == s.shape[:-1] for s in inputs)
    return 1 if is_single else case.expected[name].shape[-1]


def _scores(name: str, case: Case) -> torch.Tensor | None:
    """The first input, ``[rows, candidates]``, by which the reference's indices are the best of each row.

    What is negative among the indices pads. Lengths may say how many scores of a row count.
    """
    tensors = {n: v for n, v in case.inputs.items() if isinstance(v, torch.Tensor)}
    chosen = case.expected[name].reshape(-1, _width(name, case)).long()
    if not chosen.numel():
        return None
    lengths = [v for n, v in tensors.items() if not v.dtype.is_floating_point and "len" in n]
    fitting: list[torch.Tensor | None] = [None, *(length for length in lengths if length.numel() == len(chosen))]
    for tensor in tensors.values():
        if not tensor.dtype.is_floating_point or tensor.dim() < 2:
            continue
        values = tensor.reshape(-1, tensor.shape[-1])
        values = values.float() if values.itemsize == 1 else values  # not every device can pick these
        is_wider = len(values) == len(chosen) and values.shape[1] > chosen.shape[1]
        if is_wider and any(_are_best(chosen, values, length) for length in fitting):
            return values
    return None
