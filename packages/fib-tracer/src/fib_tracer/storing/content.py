"""What makes a workload: its record, and an identity that equal workloads share, whoever collects them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from fib_schema import Definition, InputSpec, RandomInput, SafetensorsInput, ScalarInput, Workload, WorkloadLog
from fib_schema.framing import framed

from ..policies.calls import RANDOM

_NAMESPACE = uuid.UUID("6b7f2e0a-52d9-5c3c-9a55-0f3c1de0b4a1")
"""Of the uuids that are made of contents."""


@attrs.frozen
class Content:
    """A workload and the tensors that belong to it."""

    workload: Workload
    tensors: Mapping[str, torch.Tensor]


def content_of(definition: Definition, axes: Mapping[str, int], inputs: Mapping[str, Any], log: WorkloadLog) -> Content:
    """The record of what was collected.

    Args:
        definition: What is computed.
        axes: The sizes of the variable axes.
        inputs: By name: a tensor on the CPU, a number, or `RANDOM`.
        log: What says where tensors lie.
    """
    identity = str(uuid.uuid5(_NAMESPACE, digest_of(definition.name, axes, inputs)))
    path = log.blob_path(definition, identity)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    specs = {name: _spec(name, value, path) for name, value in inputs.items()}
    return Content(Workload(dict(axes), specs, identity), tensors)


def _spec(name: str, value: Any, path: str) -> InputSpec:
    if value is RANDOM:
        return RandomInput()
    return SafetensorsInput(path, name) if isinstance(value, torch.Tensor) else ScalarInput(value)


def digest_of(name: str, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> str:
    """A hash that is the same for equal contents and for no others; the order of axes and inputs does not matter."""
    hashed = hashlib.blake2b(digest_size=16)
    plain = {key: _described(value) for key, value in inputs.items()}
    header = json.dumps([name, dict(axes), plain], sort_keys=True)
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
    """A contiguous CPU tensor's bytes, without a copy."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""
