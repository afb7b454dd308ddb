"""An adapter that another package offers."""

from fib_integrations import Adapter, Call, DefinitionRef


def convert_silu_and_mul(x, out=None):
    if x.dim() != 2:
        return "the input is not a matrix"
    key = x.shape[1] // 2
    return (key, (x,), False) if out is None else (key, (x, out), True)


def describe(key):
    return DefinitionRef(f"silu_and_mul_d{key}", inputs=("x",), outputs=("y",))


ADAPTER = Adapter(
    name="acme_silu",
    op_types=("activation",),
    targets=(
        Call(
            path="acme_ops.silu_and_mul",
            convert=convert_silu_and_mul,
            describe=describe,
            ignored=frozenset({"enable_pdl"}),
        ),
    ),
    supported="matrices, with `out` or without",
    unsupported="everything else",
)
