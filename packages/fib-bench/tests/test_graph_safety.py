"""Tests of graph safety: what a timing must have done for a solution to be called safe in CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from fib_bench.judge.graph_safety import graph_fields
from fib_bench.judge.solution_run import SolutionRun
from fib_bench.judge.verification import Sample
from fib_schema import Definition

SAFE: Mapping[str, Any] = {
    "method": "handshake",
    "has_setup": False,
    "verified_calls": 90,
    "discrete": ("kv_indptr", "kv_indices"),
    "changed": ("q", "kv_indptr", "kv_indices"),
    "kept_integers": False,
}


@pytest.mark.parametrize("change", [{}, {"discrete": (), "changed": ("x",)}])
def test_verified_replays_with_changed_integers_are_safe(change: Mapping[str, Any]) -> None:
    assert graph_fields(**{**SAFE, **change}) == {"graph_safe": True}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "eager"}, "it was timed by the method 'eager'"),
        ({"has_setup": True}, "its setup makes a plan on the host"),
        ({"kept_integers": True}, "its integers were not redrawn, because the baseline has a setup"),
        ({"changed": ("q", "kv_indices")}, "integer or boolean inputs were not redrawn: kv_indptr"),
        ({"changed": ("q",)}, "integer or boolean inputs were not redrawn: kv_indices, kv_indptr"),
        ({"verified_calls": 9}, "only 9 replays were compared"),
    ],
)
def test_without_evidence_it_is_not(change: Mapping[str, Any], reason: str) -> None:
    found = graph_fields(**{**SAFE, **change})
    assert found["graph_safe"] is False
    assert reason in str(found["graph_unsafe_reason"])


class TestEvidence:
    """Evidence of the timing of captured calls."""

    @pytest.fixture
    def definition(self, make_definition: Callable[..., Definition]) -> Definition:
        inputs = {"x": "float32[n]", "at": "int64[m]", "seen": "int32[m]", "mask": "bool[m]"}
        return make_definition(inputs, {"y": "float32[n]"}, "def run(x, at, seen, mask): ...")

    @pytest.fixture
    def fields(self, definition: Definition) -> Callable[..., Mapping[str, object]]:
        def fields(
            *changed: str, determined: str = "", padded: str = "", padding_problem: str = "", **function: bool
        ) -> Any:
            bound: Any = SimpleNamespace(**{"keeps_integers": False, "has_setup": False, **function})
            layout = SimpleNamespace(inputs=dict.fromkeys(definition.inputs))
            prepared: Any = SimpleNamespace(
                layout=layout, determined_integers=frozenset({determined}), padded_integers=frozenset({padded})
            )
            timer: Any = SimpleNamespace(
                method="handshake",
                passes=SimpleNamespace(changed_names=frozenset({"x", *changed})),
                verification=SimpleNamespace(compared=Counter({Sample.PUBLISHED: 90})),
            )
            candidate = SimpleNamespace(padding_problem=padding_problem)
            run: Any = SimpleNamespace(definition=definition, candidate=candidate)
            return SolutionRun._graph_fields(run, bound, timer, prepared)

        return fields

    @pytest.mark.parametrize(
        ("changed", "options", "problem"),
        [
            (("at", "seen", "mask"), {}, ""),
            (("at", "seen"), {}, "integer or boolean inputs were not redrawn: mask"),
            (("at", "mask"), {}, "integer or boolean inputs were not redrawn: seen"),
            (("at", "mask"), {"determined": "seen"}, ""),
            (("at", "mask"), {"padded": "seen"}, ""),
            (("at", "mask"), {"padded": "seen", "padding_problem": "it raised"}, "were not redrawn: seen"),
            (("at", "seen", "mask"), {"keeps_integers": True, "has_setup": True}, "its setup makes a plan on the host"),
            (("at", "seen", "mask"), {"keeps_integers": True}, "because the baseline has a setup"),
        ],
    )
    def test_all_discrete_inputs_must_have_changed(
        self, fields: Callable[..., Any], changed: tuple[str, ...], options: Mapping[str, Any], problem: str
    ) -> None:
        found = fields(*changed, **options)
        assert found["graph_safe"] is (not problem)
        assert problem in found.get("graph_unsafe_reason", "")
