"""Adapter classes of the first release, over the adapters of fib-integrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from fib_integrations.adapter import Adapter
from fib_integrations.adapters.gqa_paged import GQA_PAGED_DECODE, GQA_PAGED_PREFILL
from fib_integrations.adapters.mla_paged import MLA_PAGED
from fib_integrations.adapters.ragged_prefill import RAGGED_PREFILL
from fib_integrations.installation import patch_spec, wrapper_factory
from fib_integrations.patching import PatchSpec

__all__ = ["GQAPagedDecodeAdapter", "GQAPagedPrefillAdapter", "MLAPagedAdapter", "RaggedPrefillAdapter"]


class _LibraryAdapter:
    """Targets and wrappers of one adapter, for `PatchManager.patch`."""

    adapter: ClassVar[Adapter]

    def targets(self) -> list[PatchSpec]:
        """The functions to patch."""
        return [patch_spec(self.adapter, target) for target in self.adapter.targets]

    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of a target.

        Raises:
            ValueError: The path is that of no target.
        """
        for target in self.adapter.targets:
            if target.path == spec.path:
                return wrapper_factory(self.adapter, target)(spec, orig)
        raise ValueError(f"{spec.path} is not a target of {type(self).__name__}")


class GQAPagedDecodeAdapter(_LibraryAdapter):
    """Decoding with grouped queries and a paged cache."""

    adapter = GQA_PAGED_DECODE


class GQAPagedPrefillAdapter(_LibraryAdapter):
    """Prefill with grouped queries and a paged cache."""

    adapter = GQA_PAGED_PREFILL


class MLAPagedAdapter(_LibraryAdapter):
    """Multi-head latent attention with a paged cache."""

    adapter = MLA_PAGED


class RaggedPrefillAdapter(_LibraryAdapter):
    """Prefill with ragged keys and values."""

    adapter = RAGGED_PREFILL
