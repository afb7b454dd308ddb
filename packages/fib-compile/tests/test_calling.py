"""Arguments reach the parameters of the same names, whatever their order."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from fib_compile.runnable import adapt_entry
from fib_schema import Definition, TensorSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAMES = ("a", "b", "c", "y")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(NAMES), keyword_only=st.integers(0, 4), has_setup=st.booleans())
def test_every_order_of_parameters_works(
    definition: Definition,
    order: list[str],
    keyword_only: int,
    has_setup: bool,
) -> None:
    tensor = TensorSpec(("n", "k"), "float32")
    wide = attrs.evolve(definition, inputs=dict.fromkeys("abc", tensor), outputs={"y": tensor})
    positional, keywords = order[: 4 - keyword_only], order[4 - keyword_only :]
    parameters = [*positional, *(["*", *keywords] if keywords else []), *(["**extra"] if has_setup else [])]
    scope: dict[str, Callable[..., str]] = {}
    exec(f"def run({', '.join(parameters)}): return a + b + c + y", scope)

    adapted = adapt_entry(scope["run"], wide, is_dps=True, has_setup=has_setup)
    assert adapted(*NAMES) == "abcy"
