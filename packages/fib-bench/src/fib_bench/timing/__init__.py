"""Timing: measurements, the native code of handshakes, roofline."""

from __future__ import annotations

from .measurement import Measurement, median_interval

__all__ = ["Measurement", "median_interval"]
