"""Recorder of the installed FlashInfer's signatures, from which the stand-ins are generated.

usage: python signatures.py [FILE]     writes them, by default beside this file
       python signatures.py --check    compares them with the recorded ones, exits 1 if they differ
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WRAPPERS = {
    "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper": ("plan", "run", "forward", "forward_return_lse"),
    "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper": ("plan", "run", "forward", "forward_return_lse"),
    "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper": ("plan", "run", "forward", "forward_return_lse"),
    "flashinfer.mla.BatchMLAPagedAttentionWrapper": ("plan", "run"),
}
FUNCTIONS = (
    "flashinfer.norm.rmsnorm",
    "flashinfer.norm.fused_add_rmsnorm",
    "flashinfer.rope.apply_rope_with_cos_sin_cache",
    "flashinfer.rope.apply_rope_with_cos_sin_cache_inplace",
    "flashinfer.sampling.top_k_sampling_from_probs",
    "flashinfer.sampling.top_p_sampling_from_probs",
    "flashinfer.sampling.top_k_top_p_sampling_from_probs",
    "flashinfer.gemm.gemm_base.mm_bf16",
    "flashinfer.fused_moe.core.trtllm_fp8_block_scale_moe",
)


def record() -> dict[str, Any]:
    """The signatures by path, and the version."""
    found: dict[str, Any] = {"version": import_module("flashinfer").__version__, "signatures": {}}
    for path in FUNCTIONS:
        module, _, name = path.rpartition(".")
        found["signatures"][path] = parameters(getattr(import_module(module), name))
    for path, methods in WRAPPERS.items():
        module, _, name = path.rpartition(".")
        owner = getattr(import_module(module), name)
        for method in ("__init__", *methods):
            found["signatures"][f"{path}.{method}"] = parameters(getattr(owner, method))
    return found


def parameters(function: Any) -> str:
    """A function's parameters as they stand in a ``def``, without annotations."""
    found = [_bare(parameter) for parameter in inspect.signature(function).parameters.values()]
    return str(inspect.Signature(found)).removeprefix("(").removesuffix(")")


def _bare(parameter: Parameter) -> Parameter:
    default = parameter.default
    is_plain = default in (None, Parameter.empty) or type(default) in (bool, int, float, str)
    return parameter.replace(annotation=Parameter.empty, default=default if is_plain else _Named(default))


class _Named:
    """A default that has no text of its own: a dtype has one, all others are some object."""

    def __init__(self, value: Any) -> None:
        self.text = str(value) if str(value).startswith("torch.") else "OBJECT"

    def __repr__(self) -> str:
        return self.text


def recorded_file(version: str) -> Path:
    """Path of the signatures of a version."""
    return HERE / f"{'.'.join(version.split('.')[:3])}.json"


def main(arguments: list[str]) -> int:
    """Write the file, or compare with it."""
    found = record()
    place = recorded_file(found["version"])
    if arguments == ["--check"]:
        known = json.loads(place.read_text())["signatures"]
        changed = [path for path, signature in found["signatures"].items() if known.get(path) != signature]
        print(f"flashinfer {found['version']}: {', '.join(changed) or 'as recorded'}")
        return 1 if changed else 0
    place = Path(arguments[0]) if arguments else place
    place.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
