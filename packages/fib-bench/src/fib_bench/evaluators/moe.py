"""Mixtures of experts: most elements must match, for a tie in the routing changes a whole row.

Which of two experts with equal logits takes a token is the kernel's own affair, and in bfloat16
logits are often equal: of 128 experts, the eighth and the ninth are for one token in ten or twenty.
Such rows are found, and only asked to be of the right size; so the others can be judged strictly:
few elements may be wrong, and hardly ever most of a row.
"""

from __future__ import annotations

import re
from typing import Any

import attrs
import torch
from fib_schema import Definition

from ..checking.comparison import Comparison, comparison_of
from ..config.model import ResolvedEvalConfig
from .default import default_parts
from .protocol import Case, EachOutput, Evaluator, Part
from .scaled import ScaledPart, scaled_part, typical_inputs, with_blind_spots
from .tally import Piece, pieces, row_of

MATCHED_RATIO = 0.95
_OP_TYPE = re.compile(r"(^|_)moe(_|$)|mixture_of_experts")
_LOGITS = re.compile(r".*(rout|gat|logits|scores).*")
_TOP_K_AXIS = re.compile(r"(num_)?(top_?k|experts_per_tok(en)?)")
_TOP_K_IN_NAME = re.compile(r"top_?k_?(\d+)")
_ROUNDED_SHARE = 0.02
"""Where activations are rounded to eight bits between the two products, of the row's largest element.

Measured: rounding them in blocks of 128 leaves one element in 250 off by more; leaving out the
least of eight experts, two of three.
"""
_TIE = 2.0**-20
"""Logits nearer to each other than this, relative, may be chosen in any order."""
_TIED_SIZE = 4.0
"""By what factor the size of a row may be off if its experts are chosen by a tie."""
_BAD_ROWS = 0.01
"""Of the rows without ties, how many may be wrong in most elements; one in any case."""


class MixtureOfExperts(Evaluator):
    """A share of the elements by the scale of their rows, few whole rows, and an error cap."""

    name = "moe"

    def applies(self, definition: Definition) -> bool:
        """To op_types that speak of experts, if an output is floating."""
        is_moe = _OP_TYPE.search(definition.op_type) or _OP_TYPE.search(definition.name)
        return is_moe is not None and any("float" in spec.dtype for spec in definition.outputs.values())

    def settings(self, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
        """A matched ratio of 0.95; and no inputs that are ties throughout."""
        if config.required_matched_ratio is None:
            config = attrs.evolve(config, required_matched_ratio=MATCHED_RATIO)
        return typical_inputs(config)

    def check(self, case: Case) -> EachOutput:
        """Floating matrices by rows, everything else as ever."""
        rows = {n for n, t in case.expected.items() if t.dtype.is_floating_point and t.dim() > 1}
        parts = default_parts(case, case.expected.keys() - rows)
        return EachOutput({n: parts[n] if n in parts else _rows_part(n, case) for n in case.expected})


@attrs.frozen
class RowsComparison(Comparison):
    """How an output compares, and in how many rows most elements are wrong."""

    bad_rows: int = 0
    rows: int = 0

    def explain(self) -> str:
        """Say in one line how it compares."""
        text = super().explain()
        return f"{text}; most of the row in {self.bad_rows} of {self.rows} rows" if self.bad_rows else text


@attrs.frozen(eq=False, kw_only=True)
class RowsPart(ScaledPart):
    """The check of an output with a row per token."""

    tied: torch.Tensor
    """``[rows]``: rows whose experts are chosen by a tie."""

    def compare(self, found: torch.Tensor, expected: torch.Tensor) -> RowsComparison:
        """Compare every element; waits for the device twice."""
        rows, bad = [], []
        for piece in pieces(found, expected, self.width):
            wrong = self._wrong(piece)
            rows.append(row_of(piece, wrong, self.limit))
            bad.append((wrong.sum(dim=1) * 2 > self.width).sum())
        comparison = comparison_of(self.name, rows, expected, self.extent, self.limit)
        bad_rows = int(torch.stack(bad).sum()) if comparison.wrong else 0
        fields = attrs.asdict(comparison, recurse=False)
        return RowsComparison(**fields, bad_rows=bad_rows, rows=len(self.atol))

    def _wrong(self, piece: Piece) -> torch.Tensor:
        tied = self.tied[piece.rows]
        found, expected = piece.found.norm(dim=1), piece.expected.norm(dim=1)
        is_alike = (found <= expected * _TIED_SIZE) & (expected <= found * _TIED_SIZE)
        return torch.where(tied[:, None], (~is_alike)[:, None], self.wrong(piece))

    def is_right(self, comparison: Comparison) -> bool:
        """Whether enough elements are right, and hardly any row is wrong as a whole."""
        assert isinstance(comparison, RowsComparison)
        is_rare = comparison.bad_rows <= max(1, _BAD_ROWS * comparison.rows)
        return is_rare and comparison.is_within(self.required_matched_ratio)

    def to_extra(self) -> dict[str, Any]:
        """What a trace keeps of it."""
        return super().to_extra() | {"rows_with_ties": int(self.tied.sum())}


def _rows_part(name: str, case: Case) -> Part:
    expected = case.expected[name]
    part = scaled_part(name, expected, case.config, share=_share(case))
    tied = tied_rows(case)
    if tied is None or len(tied) != len(part.atol):
        tied = torch.zeros(len(part.atol), dtype=torch.bool, device=expected.device)
    fields = {field.name: getattr(part, field.name) for field in attrs.fields(ScaledPart)}
    return with_blind_spots(RowsPart(**fields, tied=tied), expected, case.inputs)


def _share(case: Case) -> float | None:
    """What quantised experts may be off by, unless the settings ask for something themselves."""
    is_quantised = any(tag.startswith("quantization:") for tag in case.definition.tags) or any(
        spec.dtype.startswith(("float8", "float4", "int8")) for spec in case.definition.inputs.values()
    )
    return _ROUNDED_SHARE if is_quantised and case.config.rtol == ResolvedEvalConfig().rtol else None


def tied_rows(case: Case) -> torch.Tensor | None:
    """The tokens for which the last expert that is chosen and the first that is not have equal logits."""
    chosen = _top_k(case)
    for name, value in case.inputs.items():
        is_floating = isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dim() == 2
        if chosen is not None and is_floating and _LOGITS.fullmatch(name):
            assert isinstance(value, torch.Tensor)
            if not 0 < chosen < value.shape[1]:
                return None
            best = value.double().topk(chosen + 1, dim=1).values
            last, next_one = best[:, -2], best[:, -1]
            return (last - next_one) <= _TIE * torch.maximum(last.abs(), next_one.abs())
    return None


def _top_k(case: Case) -> int | None:
    """How many experts a token has, by an axis or by the definition's name."""
    axes = case.definition.const_axes
    found = next((size for axis, size in axes.items() if _TOP_K_AXIS.fullmatch(axis)), None)
    named = _TOP_K_IN_NAME.search(case.definition.name)
    return found if found is not None else int(named[1]) if named else None
