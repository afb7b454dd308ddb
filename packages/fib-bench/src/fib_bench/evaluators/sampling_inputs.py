"""Inputs of sampling ops. Recognises rows of probabilities or logits, and the filters beside them."""

from __future__ import annotations

import re

import torch

from ..inputs.generation import Value
from .protocol import Case
from .sampling_filters import Filters, Rows

_IGNORED = re.compile(r".*(seed|offset|philox|generator|deterministic).*")
_ROLES = {"top_k": r"top_?ks?(_arr|_values)?", "top_p": r"top_?ps?(_arr|_values)?", "min_p": r"min_?ps?(_arr|_values)?",
          "temperature": r"temperatures?|temp"}  # fmt: skip


def _roles(case: Case) -> dict[str, str] | None:
    """The inputs by role; None if the role of one is unknown."""
    found: dict[str, str] = {}
    for name, value in case.inputs.items():
        role = next((role for role, pattern in _ROLES.items() if re.fullmatch(pattern, name)), None)
        if role is None and isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype.is_floating_point:
            role = "rows"
        if role in found or (role is None and value is not None and not _IGNORED.fullmatch(name)):
            return None
        if role is not None and value is not None:
            found[role] = name
    return found


def is_known(case: Case) -> bool:
    """Whether the inputs are rows of probabilities or logits, and nothing but filters beside them."""
    roles = _roles(case)
    if roles is None or "rows" not in roles or len(case.expected) != 1:
        return False
    rows, (samples,) = _tensor(case.inputs[roles["rows"]]), case.expected.values()
    count = len(rows)
    others = [case.inputs[name] for role, name in roles.items() if role != "rows"]
    fit = all(not isinstance(value, torch.Tensor) or value.numel() in {1, count} for value in others)
    return fit and samples.dim() in {1, 2} and len(samples) == count > 0


def rows_and_filters(case: Case, *, is_joint: bool) -> tuple[Rows, Filters]:
    """The rows and their filters; only if `is_known`.

    Args:
        case: An input set.
        is_joint: Whether top-p is meant of the whole row, rather than of what top-k leaves.
    """
    roles = _roles(case)
    assert roles is not None
    rows = _tensor(case.inputs[roles["rows"]])
    per_row = {role: _per_row(case.inputs[name], rows) for role, name in roles.items() if role != "rows"}
    top_k = per_row.get("top_k")
    filters = Filters(
        None if top_k is None else top_k.long(), per_row.get("top_p"), per_row.get("min_p"), is_joint=is_joint
    )
    return Rows(rows, not _are_probabilities(roles["rows"], rows), per_row.get("temperature")), filters


def _are_probabilities(name: str, rows: torch.Tensor) -> bool:
    if "prob" in name or "logit" in name:
        return "prob" in name
    return bool((rows >= 0).all()) and bool((rows.sum(dim=1, dtype=torch.float64) - 1).abs().max() < 1e-2)


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _per_row(value: Value, rows: torch.Tensor) -> torch.Tensor:
    """One number per row in float64, from a scalar, one for all, or one for each."""
    numbers = value if isinstance(value, torch.Tensor) else torch.tensor(value, device=rows.device)
    return numbers.double().reshape(-1).expand(len(rows))
