"""Value probes: elements of tensors that a policy needs to decide, such as the last offset of an ``indptr``.

On a device a probe costs as much as a kept call: its tensors are copied before the policy can refuse it. `ProbeBackoff`
keeps that from being the cost of every call of an engine whose quotas are full.
"""

from __future__ import annotations

import attrs
import torch

from ..policies.calls import Call

_REFUSALS = 64
"""Calls in a row that a policy refuses before probes become rarer."""
_MAX_PERIOD = 251
"""The largest distance of two probed calls: prime, so that it hits all layers of a model in turn."""


class ProbeBackoff:
    """Chooses the calls that are probed: all of them until `_REFUSALS` in a row are refused, then fewer and fewer.

    The distance of two probed calls doubles with each refusal, up to `_MAX_PERIOD` calls. A call that the policy keeps
    makes it 1 again. Threads may probe a few calls more.
    """

    def __init__(self) -> None:
        self._refusals = 0
        self._skips = 0

    def is_due(self) -> bool:
        """Whether a call is to be probed; called once for each call."""
        if self._skips <= 0:
            return True
        self._skips -= 1
        return False

    def note(self, *, is_kept: bool) -> None:
        """Note the policy's decision about a call that was probed."""
        self._refusals = 0 if is_kept else self._refusals + 1
        doublings = self._refusals - _REFUSALS
        self._skips = 0 if doublings <= 0 else min(1 << min(doublings, 8), _MAX_PERIOD) - 1


def element_of(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """An element along the first dimension, as a tensor."""
    return tensor[-1:] if index == -1 else tensor[index : index + 1]


def without_memory(call: Call) -> Call:
    """A call with ``meta`` tensors: the caller's tensors may be large and must not be kept alive."""
    shown = {name: _meta(value) if isinstance(value, torch.Tensor) else value for name, value in call.inputs.items()}
    return attrs.evolve(call, inputs=shown)


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
