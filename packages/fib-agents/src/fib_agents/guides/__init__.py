"""Guides for language models: bindings, kernel languages, how results are judged. The first line states the version.

The examples are complete solutions of the definition that `judging` uses, a row-wise softmax. Tests compile all of
them, and run those that a CPU can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from fib_schema import UnknownName

GUIDES: Mapping[str, str] = {
    "judging": "how solutions are judged, what is rejected, how to read results",
    "tvm-ffi": "C++ and CUDA kernels with the TVM-FFI binding",
    "triton": "Triton kernels, with what matters on Hopper",
    "tilelang": "TileLang kernels",
}
"""Subject of each guide."""


@cache
def read_guide(name: str) -> str:
    """The text of a guide, in Markdown.

    Raises:
        UnknownName: There is no such guide.
    """
    if name not in GUIDES:
        raise UnknownName("guide", name, tuple(GUIDES))
    return resources.files(__package__).joinpath(f"{name}.md").read_text("utf-8")
