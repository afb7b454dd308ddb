"""Evaluator of top-k ops. Indices of the largest scores, compared as sets, row by row.

Where the scores are an input, an index is right if its score is among the k best, and of equal
scores any may be taken. Where they are computed on the way (an indexer's), two right kernels differ
in a few indices whose scores are next to the last that is chosen, so a large share must be the
reference's. In any case each index comes once, lies in range, and rows that are short are padded
where the reference pads them.
"""

from __future__ import annotations

import re

import torch
from fib_schema import Definition, TensorSpec

from .default import default_parts
from .index_sets import IndexSets, Rows, Scores, scores_for
from .protocol import Case, Evaluator
from .references import calls_of
from .scaled import scaled_part

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
    return [
        name
        for name, spec in definition.outputs.items()
        if spec.is_integer and spec.shape and _INDICES.fullmatch(name) and not _is_permutation(spec, definition)
    ]


def _is_permutation(spec: TensorSpec, definition: Definition) -> bool:
    """Whether there are as many indices as candidates: then only their order carries information."""
    return any(other.shape == spec.shape and "float" in other.dtype for other in definition.inputs.values())


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


def _scores(name: str, case: Case) -> Scores | None:
    tensors = {n: v for n, v in case.inputs.items() if isinstance(v, torch.Tensor)}
    floating = [v for v in tensors.values() if v.dtype.is_floating_point and v.dim() > 1]
    lengths = [v for n, v in tensors.items() if not v.dtype.is_floating_point and "len" in n]
    return scores_for(case.expected[name].reshape(-1, _width(name, case)), floating, lengths)
