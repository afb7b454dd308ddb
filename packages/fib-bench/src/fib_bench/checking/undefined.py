"""Undefined elements: elements for which the reference gives NaN, where any value is right."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import OutputsUndefined
from .comparison import measure_extent

MOST_UNDEFINED = 0.5
"""The largest share of an output's elements that may be undefined; beyond it a verdict has little meaning."""


def undefined_shares(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The share of NaN in each output; waits for the device once per output.

    Args:
        outputs: The reference's outputs by name, of any shape and dtype.

    Returns:
        Shares between 0 and 1 by name; 0 for integers and for outputs without elements.
    """
    return {name: measure_extent(tensor).undefined_share for name, tensor in outputs.items()}


def raise_if_mostly_undefined(definition: str, workload: str, outputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse a workload on which the reference leaves most of an output undefined.

    Args:
        definition: The definition's name.
        workload: The workload's identifier.
        outputs: The reference's outputs by name.

    Raises:
        OutputsUndefined: More than half of the elements of an output are NaN.
    """
    shares = undefined_shares(outputs)
    if any(share > MOST_UNDEFINED for share in shares.values()):
        raise OutputsUndefined(definition, workload, shares)
