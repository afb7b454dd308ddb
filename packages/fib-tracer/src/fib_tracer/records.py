"""Workload records. Equal workloads have equal uuids, also if several processes record them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from fib_schema import Definition, InputSpec, RandomInput, SafetensorsInput, ScalarInput, Workload, WorkloadLog
from fib_schema.solution import framed
from fib_schema.strides import Strides, layout_extra

from .policies import RANDOM

Record: TypeAlias = tuple[Workload, dict[str, torch.Tensor]]
"""A workload and the tensors that it names."""
NO_STRIDES: Mapping[str, Strides] = MappingProxyType({})
"""The layout of contiguous inputs."""
_NAMESPACE = uuid.UUID("6b7f2e0a-52d9-5c3c-9a55-0f3c1de0b4a1")
"""Namespace of the uuids that are made from digests."""


def make_record(
    definition: Definition,
    axes: Mapping[str, int],
    inputs: Mapping[str, Any],
    log: WorkloadLog,
    strides: Mapping[str, Strides] = NO_STRIDES,
) -> Record:
    """The record of a kept call, whose inputs are tensors on the CPU, numbers, or `RANDOM`."""
    identity = str(uuid.uuid5(_NAMESPACE, workload_digest(definition.name, axes, inputs, strides)))
    path = log.blob_path(definition, identity)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    specs = {name: _spec(name, value, path) for name, value in inputs.items()}
    return Workload(dict(axes), specs, identity, layout_extra(strides) or None), tensors


def _spec(name: str, value: Any, path: str) -> InputSpec:
    if value is RANDOM:
        return RandomInput()
    return SafetensorsInput(path, name) if isinstance(value, torch.Tensor) else ScalarInput(value)


def workload_digest(
    name: str, axes: Mapping[str, int], inputs: Mapping[str, Any], strides: Mapping[str, Strides] = NO_STRIDES
) -> str:
    """A hash of a definition's name, axes, inputs and layout, whatever the order of axes and inputs."""
    hashed = hashlib.blake2b(digest_size=16)
    plain = {key: _described(value) for key, value in inputs.items()}
    layout = [dict(strides)] if strides else []  # the digest of contiguous inputs is that of earlier releases
    header = json.dumps([name, dict(axes), plain, *layout], sort_keys=True)
    hashed.update(framed([header]))
    for key in sorted(inputs):
        if isinstance(value := inputs[key], torch.Tensor):
            hashed.update(_memory(value))
    return hashed.hexdigest()


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape)]
    return "random" if value is RANDOM else [type(value).__name__, repr(value)]


def _memory(tensor: torch.Tensor) -> Any:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""
