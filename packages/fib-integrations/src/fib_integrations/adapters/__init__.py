"""The adapters of this package, and those that others offer as entry points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from ..adapter import Adapter
from ..errors import CannotAdapt, ClashingAdapters, UnknownAdapter
from .gemm import GEMM, TORCH_LINEAR, TORCH_MM
from .gqa_paged_decode import GQA_PAGED_DECODE
from .gqa_paged_prefill import GQA_PAGED_PREFILL
from .mla_paged import MLA_PAGED
from .moe_fp8 import MOE_FP8
from .ragged_prefill import RAGGED_PREFILL
from .rmsnorm import FUSED_ADD_RMSNORM, RMSNORM
from .rope import ROPE
from .sampling import SAMPLING

GROUP = "fib_integrations.adapters"
"""Entry points of this group are adapters, or sequences of them."""
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
)


def all_adapters() -> Mapping[str, Adapter]:
    """Every adapter by its name, those of others included.

    Raises:
        ClashingAdapters: Two have the same name.
        CannotAdapt: An entry point is no adapter, or cannot be loaded.
    """
    found = {adapter.name: adapter for adapter in BUILT_IN}
    places = dict.fromkeys(found, "fib_integrations")
    for point in entry_points(group=GROUP):
        for adapter in _load(point):
            if adapter.name in found:
                raise ClashingAdapters(adapter.name, (places[adapter.name], point.value))
            found[adapter.name], places[adapter.name] = adapter, point.value
    return found


def _load(point: EntryPoint) -> Iterable[Adapter]:
    try:
        value = point.load()
    except Exception as error:
        problem = f"the entry point {point.name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise CannotAdapt(point.value, problem) from error
    adapters = (
        (value,) if isinstance(value, Adapter) else tuple(value) if isinstance(value, (tuple, list)) else (value,)
    )
    for adapter in adapters:
        if not isinstance(adapter, Adapter):
            raise CannotAdapt(point.value, f"the entry point {point.name!r} gives a {type(adapter).__name__}")
    return adapters


def chosen(names: Iterable[str] | None, also: Iterable[str] = ()) -> tuple[Adapter, ...]:
    """Adapters by their names; those that are installed by default, if no names are given.

    Args:
        names: Which ones; None means the default.
        also: More of them.

    Raises:
        UnknownAdapter: There is none of a name.
    """
    known = all_adapters()
    wanted = [name for name, adapter in known.items() if adapter.is_default] if names is None else list(names)
    for name in (*wanted, *also):
        if name not in known:
            raise UnknownAdapter(name, tuple(known))
    return tuple(known[name] for name in dict.fromkeys((*wanted, *also)))
