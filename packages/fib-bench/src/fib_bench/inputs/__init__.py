"""Inputs of workloads.

`generation` makes those of a workload: it reads blobs, and looks up in `synthesis` which of the `makers` make the rest.
For timed calls `recipes` say what `generator.h` makes of a key, `redrawing` draws structural integers, and
`index_padding` lengthens index inputs.
"""

from __future__ import annotations

from .generation import Value, distributions_of, make_inputs

__all__ = ["Value", "distributions_of", "make_inputs"]
