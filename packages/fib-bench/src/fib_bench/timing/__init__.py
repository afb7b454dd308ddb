"""Timing: measurements, the stopwatch of a CPU, settings and clocks of devices, roofline."""

from __future__ import annotations

from .measurement import Measurement, StopRule, median_interval

__all__ = ["Measurement", "StopRule", "median_interval"]
