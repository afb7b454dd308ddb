"""Settings of an attention wrapper that hold for all runs of a plan, and those that a definition describes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

DECODE_HINTS = frozenset({"non_blocking", "fixed_split_size", "disable_split_kv", "rope_scale", "rope_theta"})
"""Parameters of ``plan`` that have no effect on the result without a positional encoding."""
PREFILL_HINTS = DECODE_HINTS | {"max_token_per_sequence", "max_sequence_kv", "uniform_q_len"}
"""The same of a prefill wrapper."""
NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {"block_tables": None, "seq_lens": None, "q_len_per_req": 1, "window_right": 0, "is_causal": None}
)
"""Defaults of keywords that FlashInfer 0.7.2's ``plan`` of decode takes as ``**kwargs``; vLLM passes the first two."""


class DecodeSettings(NamedTuple):
    """Settings that ``plan`` and ``forward`` give a wrapper's runs, named as the wrapper's attributes."""

    pos_encoding_mode: str = "NONE"
    window_left: int = -1
    logits_soft_cap: float | None = None
    sm_scale: float | None = None
    rope_scale: float | None = None
    rope_theta: float | None = None

    @property
    def is_causal(self) -> bool:
        """A decoded token is the last one and attends to all tokens."""
        return True


class PrefillSettings(NamedTuple):
    """The same of a prefill wrapper."""

    causal: bool = False
    pos_encoding_mode: str = "NONE"
    use_fp16_qk_reduction: bool = False
    window_left: int = -1
    logits_soft_cap: float | None = None
    sm_scale: float | None = None
    rope_scale: float | None = None
    rope_theta: float | None = None

    @property
    def is_causal(self) -> bool:
        """Whether a token attends to those before it only."""
        return self.causal


Settings: TypeAlias = DecodeSettings | PrefillSettings


def unsupported_settings(settings: Settings) -> str | None:
    """Reason that no definition describes runs with these settings; None if one may."""
    if not settings.is_causal:
        return "it is not causal"
    if settings.pos_encoding_mode != "NONE":
        return f"a positional encoding is applied inside ({settings.pos_encoding_mode})"
    if settings.window_left >= 0:
        return "it has a sliding window"
    if settings.logits_soft_cap:
        return "it has a logits soft cap"
    return "it sums products in float16" if getattr(settings, "use_fp16_qk_reduction", False) else None


def compiled_problem(planned: Settings) -> str | None:
    """Reason that no definition describes any run of a plan with these settings, whatever a run changes.

    FlashInfer compiles them into the kernels when it plans. None if one may.
    """
    if planned.pos_encoding_mode != "NONE":
        return f"it was planned with a positional encoding ({planned.pos_encoding_mode})"
    if planned.logits_soft_cap:
        return "it was planned with a logits soft cap"
    is_half = getattr(planned, "use_fp16_qk_reduction", False)
    return "it was planned with sums in float16" if is_half else None


def softmax_scale(sm_scale: float | None, head_dim: int) -> float:
    """The softmax scale; by default, FlashInfer's."""
    return 1.0 / math.sqrt(head_dim) if sm_scale is None else float(sm_scale)
