"""Starter files: kernels that pass, to begin with."""

from __future__ import annotations

from fib_schema import Definition


def signature_of(definition: Definition) -> list[tuple[str, str, str]]:
    """The inputs and outputs of a definition: the role, the name and the type of each, such as ``float32[n, 64]``."""
    roles = (("input", definition.inputs), ("output", definition.outputs))
    return [
        (role, name, spec.dtype if spec.shape is None else f"{spec.dtype}[{', '.join(spec.shape)}]")
        for role, specs in roles
        for name, spec in specs.items()
    ]


def starter_of(definition: Definition) -> str:
    """The reference of a definition, below a comment with the types: a kernel file that passes as it is."""
    lines = [f"# {definition.name}: replace the body of `run`, which is the reference."]
    lines += [f"#   {role} {name}: {kind}" for role, name, kind in signature_of(definition)]
    lines += [f"#   {name} = {size}" for name, size in definition.const_axes.items()]
    return "\n".join([*lines, "", definition.reference])
