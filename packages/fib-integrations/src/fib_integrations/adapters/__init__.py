"""Registry of adapters: those of this package, and those that other packages offer as entry points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fib_schema import Definition, UnknownName
from fib_schema.entry_points import UnusableEntryPoint, describe, find_entry_points, load_entry_point

from ..adapter import Adapter, CannotAdapt
from .elementwise import FUSED_ADD_RMSNORM, RMSNORM, ROPE, SGLANG_JIT, SGLANG_KERNELS, VLLM_CUSTOM_OPS
from .gemm import GEMM, TORCH_LINEAR, TORCH_MM
from .gqa_paged import GQA_PAGED_DECODE, GQA_PAGED_PREFILL
from .mla_paged import MLA_PAGED
from .moe_fp8 import MOE_FP8
from .ragged_prefill import RAGGED_PREFILL
from .sampling import SAMPLING
from .vllm_layers import VLLM_ATTENTION, VLLM_EXPERTS, VLLM_LINEAR

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fib_integrations.adapters"
"""The entry-point group; an entry point is an `Adapter` or a sequence of them."""
BUILT_IN = (
    GQA_PAGED_DECODE,
    GQA_PAGED_PREFILL,
    RAGGED_PREFILL,
    MLA_PAGED,
    RMSNORM,
    FUSED_ADD_RMSNORM,
    GEMM,
    TORCH_LINEAR,
    TORCH_MM,
    ROPE,
    SAMPLING,
    MOE_FP8,
    VLLM_ATTENTION,
    VLLM_EXPERTS,
    VLLM_LINEAR,
    VLLM_CUSTOM_OPS,
    SGLANG_KERNELS,
    SGLANG_JIT,
)


def all_adapters() -> Mapping[str, Adapter]:
    """All adapters by name, those of other packages included.

    Raises:
        CannotAdapt: An entry point cannot be loaded, is not an adapter, or has the name of another one.
    """
    found = {adapter.name: adapter for adapter in BUILT_IN}
    places = dict.fromkeys(found, "fib_integrations")
    for point in find_entry_points(GROUP):
        for adapter in _load(point):
            if adapter.name in found:
                raise CannotAdapt(
                    point.value, f"{places[adapter.name]} has an adapter {adapter.name!r}, too; rename one"
                )
            found[adapter.name], places[adapter.name] = adapter, point.value
    return found


def _load(point: EntryPoint) -> Iterable[Adapter]:
    try:
        value = load_entry_point(point)
    except UnusableEntryPoint as error:
        raise CannotAdapt(point.value, f"it cannot be loaded: {error}") from error
    adapters = value if isinstance(value, (tuple, list)) else (value,)
    for adapter in adapters:
        if not isinstance(adapter, Adapter):
            raise CannotAdapt(point.value, f"the {describe(point)} is a {type(adapter).__name__}, not an Adapter")
    return adapters


def select_adapters(names: Iterable[str] | None, also: Iterable[str] = ()) -> tuple[Adapter, ...]:
    """Adapters by name.

    Args:
        names: None selects the default ones.
        also: Further ones.

    Raises:
        UnknownName: No adapter has a given name.
    """
    known = all_adapters()
    wanted = [name for name, adapter in known.items() if adapter.is_default] if names is None else list(names)
    wanted.extend(also)
    for name in wanted:
        if name not in known:
            raise UnknownName("adapter", name, tuple(known))
    return tuple(known[name] for name in dict.fromkeys(wanted))


def find_definitions(names: Iterable[str]) -> tuple[Definition, ...]:
    """Definitions of the adapters' own families; `UnknownName` for a name of none."""
    families, found = [family for adapter in all_adapters().values() for family in adapter.families], []
    for name in names:
        made = [one for family in families if (one := family.define(name)) is not None]
        if not made:
            raise UnknownName("family of definitions", name, tuple(family.name for family in families))
        found += made
    return tuple(found)
