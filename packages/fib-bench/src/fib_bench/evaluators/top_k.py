"""Evaluator of top-k ops. Indices of the largest scores, compared as sets, row by row.

Where the scores are an input, an index is right if its score is among the k best, and of equal
scores any may be taken. Where they are computed on the way (an indexer's), two right kernels differ
in a few indices whose scores are next to the last that is chosen, so a large share must be the
reference's. In any case each index comes once, lies in range, and rows that are short are padded
where the reference pads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from fib_schema import Definition

from ..checking.comparison import Comparison
from ..checking.sensitivity import OutputCheck
from .protocol import Case, Check, Evaluator, Tensors, Verdict, calls_of, default_parts
from .scaled import scaled_part

_TIE = 2.0**-20
"""Scores nearer to each other than this, relative, count as equal."""
_WORST_ROW, _MOST_OF_ROW = 5.0, 0.5
"""A single row may lack five times the share that all rows together may, but never more than half of its indices. One
index may be lacking in any case; rows of a single index then have only the limit over all rows."""


def scores_for(
    chosen: torch.Tensor, candidates: Sequence[torch.Tensor], lengths: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """The first of some tensors, ``[rows, candidates]``, by which the reference's indices are the best of each row.

    Of ``[rows, k]`` chosen indices, what is negative pads. Lengths may say how many scores of a row count.
    """
    for tensor in candidates:
        values = tensor.reshape(-1, tensor.shape[-1])
        values = values.float() if values.itemsize == 1 else values  # not every device can pick these
        if len(values) != len(chosen) or chosen.numel() == 0 or values.shape[1] <= chosen.shape[1]:
            continue
        if any(
            _are_best(chosen.long(), values, length)
            for length in (None, *(n for n in lengths if n.numel() == len(values)))
        ):
            return values
    return None


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
    """The indices in a row."""
    scores: torch.Tensor | None
    """``[rows, candidates]``"""


@attrs.frozen(eq=False)
class _Counts:
    """The numbers of wrong indices, by kind."""

    padded: int
    outside: int
    twice: int
    strange: int
    """Indices that are none of the reference's, or scores that are not."""
    worst_row: int
    """The most of them in one row, and the index of that row."""
    row: int
    count: int
    """Indices expected."""


@attrs.frozen(eq=False)
class IndexSets(Check):
    """Outputs of indices, each row a set, and the values beside them."""

    parts: Mapping[str, OutputCheck] = attrs.field()
    """Checks of all other outputs."""
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
        for name, rows in self.rows.items():
            a, b = (tensors[name].long().reshape(-1, rows.width) for tensors in (found, expected))
            counts = _count(a, b, rows.scores)
            wrong = max(counts.strange, counts.padded, counts.outside, counts.twice)
            comparisons.append(Comparison(name, counts.count, wrong))
            problems += [f"output {name!r}: {problem}" for problem in self._problems(counts, rows)]
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

    def _problems(self, counts: _Counts, rows: Rows) -> list[str]:
        texts = {
            "entries are padding where the reference has none, or the reverse": counts.padded,
            "indices lie beyond all candidates": counts.outside,
            "indices occur twice in their row": counts.twice,
        }
        problems = [f"{count} {text}" for text, count in texts.items() if count]
        where = f"worst in row {counts.row}, where {counts.worst_row} are"
        if rows.scores is not None:
            if counts.strange:
                problems.append(f"{counts.strange} of {counts.count} indices have other scores than the best; {where}")
        elif self._lacks(counts, rows.width):
            share = 1 - counts.strange / max(counts.count, 1)
            text = f"{counts.strange} of {counts.count} indices are not among the reference's; {where}"
            problems.append(f"{text}; the overlap is {share:.4f}, required: {self.overlap}")
        return problems

    def _lacks(self, counts: _Counts, width: int) -> bool:
        allowed = 1 - self.overlap
        most_in_row = max(1.0, min(_WORST_ROW * allowed, _MOST_OF_ROW) * width)
        return counts.strange > allowed * counts.count or counts.worst_row > most_in_row


def _count(found: torch.Tensor, expected: torch.Tensor, scores: torch.Tensor | None) -> _Counts:
    """Compare ``[rows, k]``; waits for the device once."""
    if not expected.numel():
        return _Counts(0, 0, 0, 0, 0, 0, 0)
    is_real = expected >= 0
    padded = torch.where(is_real, found < 0, found != expected)
    outside = torch.zeros_like(is_real) if scores is None else found >= scores.shape[1]
    is_member = _is_member(found, expected)
    strange = is_real & ~padded & ~is_member if scores is None else _differ(scores, found, expected)
    twice = (_repeats(found) - _repeats(expected)).clamp(min=0)
    by_row = strange.sum(dim=1)
    most, row = by_row.max(dim=0)
    numbers = [padded.sum(), outside.sum(), twice.sum(), by_row.sum(), most, row, is_real.sum()]
    return _Counts(*torch.stack(numbers).tolist())


def _is_member(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Mask of the indices that occur in the same row of the expected indices."""
    ordered = expected.sort(dim=1).values
    places = torch.searchsorted(ordered, found.contiguous()).clamp_(max=ordered.shape[1] - 1)
    return ordered.gather(1, places) == found


def _repeats(indices: torch.Tensor) -> torch.Tensor:
    """The number of indices of each row that were there before."""
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
_INDICES = re.compile(
    r"(?!.*(sorted|perm|invers|token_id|page|slot))(.*_)?(indices|index|idx|ids?|experts?|argmax|top_?k|places?|positions?|chosen|selected)"
)
_ABOUT_CHOICE = re.compile(r"top_?k|indexer|arg_?max")
_CHOOSES = {"topk", "argmax", "argsort", "sort"}


class TopK(Evaluator):
    """Overlap of sets; by score where scores are known."""

    name = "top_k"

    def applies(self, definition: Definition) -> bool:
        """True for ops whose outputs contain indices selected by value from a larger set."""
        return bool(index_outputs(definition))

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


def index_outputs(definition: Definition) -> list[str]:
    """The outputs that hold chosen indices."""
    words = " ".join([definition.op_type, definition.name, *definition.tags])
    if not (_ABOUT_CHOICE.search(words) or _CHOOSES & calls_of(definition)):
        return []
    shapes = [spec.shape for spec in definition.inputs.values() if "float" in spec.dtype]  # of all candidates
    return [
        name
        for name, spec in definition.outputs.items()
        if spec.is_integer and spec.shape and _INDICES.fullmatch(name) and spec.shape not in shapes
    ]


def _beside(case: Case, indices: str) -> list[str]:
    """The floating outputs with one value per chosen index."""
    shape = case.expected[indices].shape
    return [n for n, t in case.expected.items() if t.dtype.is_floating_point and t.shape == shape and t.itemsize > 1]


def _width(name: str, case: Case) -> int:
    """The number of indices of one choice: one where each row of an input gets a single index."""
    spec = case.definition.outputs[name]
    inputs = case.definition.inputs.values()
    is_single = any("float" in s.dtype and s.shape and spec.shape == s.shape[:-1] for s in inputs)
    return 1 if is_single else case.expected[name].shape[-1]


def _scores(name: str, case: Case) -> torch.Tensor | None:
    tensors = {n: v for n, v in case.inputs.items() if isinstance(v, torch.Tensor)}
    floating = [v for v in tensors.values() if v.dtype.is_floating_point and v.dim() > 1]
    lengths = [v for n, v in tensors.items() if not v.dtype.is_floating_point and "len" in n]
    return scores_for(case.expected[name].reshape(-1, _width(name, case)), floating, lengths)
