"""Results of a reference on one workload, which solutions are compared with."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_bench import BenchmarkConfig, ResolvedEvalConfig, make_inputs
from fib_compile import BuilderRegistry, Runnable
from fib_schema import Definition, Workload

from .timing import time_runnable

__all__ = ["BaselineHandle", "DeviceBaseline", "call_by_name", "make_baseline", "settings_for"]


class BaselineHandle(str):
    """Name of a baseline in its runner."""

    __slots__ = ()


@attrs.frozen(eq=False)
class DeviceBaseline:
    """The inputs of a workload with the outputs and the latency of its reference."""

    handle: BaselineHandle
    defn: Definition
    device: str
    inputs_dev: Sequence[Mapping[str, Any]]
    """Inputs by name, for each trial."""
    ref_outputs_dev: Sequence[Mapping[str, torch.Tensor]]
    """Outputs by name, for each trial."""
    ref_mean_latency_ms: float


def settings_for(definition: Definition, cfg: BenchmarkConfig | ResolvedEvalConfig | None) -> ResolvedEvalConfig:
    """The settings in force; None means the defaults."""
    if isinstance(cfg, BenchmarkConfig):
        return cfg.resolve_eval_config(definition)
    return ResolvedEvalConfig() if cfg is None else cfg


def call_by_name(definition: Definition, function: Runnable, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function with the inputs; returns the outputs by name."""
    result = function.call_value_returning(*(inputs[name] for name in definition.inputs))
    return dict(zip(definition.outputs, result if isinstance(result, tuple) else (result,), strict=True))


def make_baseline(
    definition: Definition,
    workload: Workload,
    cfg: BenchmarkConfig | ResolvedEvalConfig | None,
    device: str,
    traceset_root: Path | None = None,
) -> DeviceBaseline:
    """Run and time the reference in this process.

    Args:
        definition: It has the reference.
        workload: Sizes and inputs.
        cfg: The settings, such as the number of trials.
        device: ``cpu`` or ``cuda:N``.
        traceset_root: The folder of tensors that are inputs.

    Raises:
        InputError: An input cannot be made.
        BuildError: The reference cannot be built.
    """
    settings = settings_for(definition, cfg)
    reference = BuilderRegistry.get_instance().build_reference(definition)
    inputs = [
        make_inputs(definition, workload, seed=trial, root=traceset_root, device=device)
        for trial in range(settings.num_trials)
    ]
    outputs = [call_by_name(definition, reference, values) for values in inputs]
    latency_ms = time_runnable(reference, inputs[0], settings.warmup_runs, settings.iterations, device)
    handle = BaselineHandle(f"{definition.name}-{workload.uuid}-{uuid.uuid4().hex[:8]}")
    return DeviceBaseline(handle, definition, device, inputs, outputs, latency_ms)
