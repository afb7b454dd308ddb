"""Serving engines: the versions that adapters of their functions were read from, and checks of other versions.

An engine changes its functions with each release. An adapter of them states the versions and the parameters. Another
version is used, with a warning, if the parameters are equal; else the function is not touched.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import attrs

from .errors import CannotAdapt

_logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Engine:
    """The distribution of an engine, with what is known of its functions."""

    distribution: str
    """Its name on the package index."""
    versions: tuple[str, ...]
    """The versions that were read."""
    parameters: Mapping[str, str]
    """By the path of a function, its parameters without annotations: ``"x, weight, epsilon, variance_size=None"``."""

    @property
    def is_installed(self) -> bool:
        """Whether a version of it is installed."""
        return installed_version(self.distribution) != _UNKNOWN

    def check(self, path: str, function: Callable[..., Any]) -> None:
        """Check that a function is one that the adapter was written for; log a warning for an unknown version.

        Raises:
            CannotAdapt: It has other parameters than in the known versions.
        """
        version, found = installed_version(self.distribution), parameters_of(function)
        if found != self.parameters[path]:
            wanted = f"({self.parameters[path]}) as in {self.distribution} {', '.join(self.versions)}"
            raise CannotAdapt(path, f"its parameters are ({found}) in version {version}, not {wanted}")
        if version not in self.versions:
            known = ", ".join(self.versions)
            _logger.warning(
                "%s is of %s %s, which was not read (known: %s); it is used, because its parameters are equal",
                path, self.distribution, version, known,
            )  # fmt: skip


_UNKNOWN = "unknown"


def installed_version(distribution: str) -> str:
    """The version of a distribution, without a local part such as ``+cu130``; ``unknown`` if it is not installed."""
    try:
        return importlib.metadata.version(distribution).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return _UNKNOWN


def parameters_of(function: Callable[..., Any]) -> str:
    """The parameters of a function as they stand in a ``def``, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "unreadable"
    bare = [parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(bare)).removeprefix("(").removesuffix(")")


VLLM = Engine(
    distribution="vllm",
    versions=("0.26.0",),
    parameters={
        "vllm.ir.ops.rms_norm": "x, weight, epsilon, variance_size=None",
        "vllm.ir.ops.fused_add_rms_norm": "x, x_residual, weight, epsilon, variance_size=None",
        "vllm._custom_ops.rms_norm": "out, input, weight, epsilon",
        "vllm._custom_ops.fused_add_rms_norm": "input, residual, weight, epsilon",
        "vllm._custom_ops.rotary_embedding": (
            "positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False"
        ),
    },
)
SGLANG = Engine(
    distribution="sglang",
    versions=("0.5.17",),
    parameters={
        "sglang.kernels.ops.layernorm.norm.rmsnorm": "input, weight, out=None, eps=1e-06",
        "sglang.kernels.ops.layernorm.norm.fused_add_rmsnorm": (
            "input, residual, weight, eps=1e-06, *, cast_x_before_out_mul=False"
        ),
    },
)
SGL_KERNEL = Engine(
    distribution="sglang-kernel",
    versions=("0.4.5",),
    parameters={
        "sgl_kernel.elementwise.rmsnorm": "input, weight, eps=1e-06, out=None, enable_pdl=None",
        "sgl_kernel.elementwise.fused_add_rmsnorm": "input, residual, weight, eps=1e-06, enable_pdl=None",
    },
)
