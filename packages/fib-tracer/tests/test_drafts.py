"""Tests of draft definitions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_apply import apply
from fib_schema import TraceSet
from fib_tracer import enable_tracing
from fib_tracer.capture.drafts import MAX_CALLS, Draft, can_be_drafted

from .conftest import errors_of


def drafted(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "drafts" / f"{name}.json").read_text())
    return found


def test_sizes_that_are_always_equal_are_one_axis() -> None:
    draft = Draft("matmul", ("a", "b"))
    for m in (1, 2):
        draft.add({"a": torch.ones(m, 4), "b": torch.ones(4, 4)})
    plain = draft.to_plain()
    assert plain["axes"] == {"a_dim0": {"type": "var"}, "a_dim1": {"type": "const", "value": 4}}
    assert plain["inputs"]["b"] == {"shape": ["a_dim1", "a_dim1"], "dtype": "float32"}


def test_inputs_that_are_sometimes_given_are_optional() -> None:
    draft = Draft("odd", ("self", "x", "mask", "flag", "name", "count"))
    draft.add({"self": draft, "x": torch.ones(()), "mask": None, "flag": True, "name": "a", "count": 3})
    draft.add({"self": draft, "x": torch.ones(()), "mask": torch.ones(2, dtype=torch.bool), "flag": False, "count": 4})
    assert draft.to_plain()["inputs"] == {
        "x": {"shape": [], "dtype": "float32"},
        "mask": {"shape": ["mask_dim0"], "dtype": "bool", "optional": True},
        "flag": {"shape": None, "dtype": "bool"},
        "count": {"shape": None, "dtype": "int64"},
    }


def test_functions_of_one_definition_may_have_different_parameters() -> None:
    draft = Draft("odd", ("x",))
    draft.add({"x": torch.ones(2), "w": torch.ones(1)})
    draft.accept(("w", "x"))
    draft.add({"x": torch.ones(3), "w": torch.ones(4)})
    draft.add({"x": torch.ones(3)})
    plain = draft.to_plain()
    assert plain["axes"] == {"x_dim0": {"type": "var"}, "w_dim0": {"type": "const", "value": 4}}
    assert plain["inputs"] == {
        "x": {"shape": ["x_dim0"], "dtype": "float32"},
        "w": {"shape": ["w_dim0"], "dtype": "float32", "optional": True},
    }


def test_a_draft_stops_after_the_last_call_it_needs() -> None:
    draft = Draft("many", ("x",))
    told = [draft.add({"x": torch.ones(size)}) for size in range(MAX_CALLS + 5)]
    assert [place for place, is_last in enumerate(told) if is_last] == [MAX_CALLS - 1]
    assert f"{MAX_CALLS} calls" in draft.to_plain()["description"]


def test_one_definition_may_be_called_in_several_ways(root: Path) -> None:
    """Arguments are matched by name, whatever the order of a function's parameters."""

    @apply("unknown")
    def one(x: Any, w: Any) -> None: ...

    @apply("unknown")
    def other(w: Any, x: Any) -> None: ...

    with enable_tracing(root, drafts=True) as runtime:
        one(torch.ones(3, 4), torch.ones(4))
        other(torch.ones(4), torch.ones(5, 4))
        apply("unknown", kwargs={"x": torch.ones(6, 4)}, fallback=lambda x: None)
    assert errors_of(runtime, "unknown") == {}
    plain = drafted(root, "unknown")
    assert plain["inputs"]["x"] == {"shape": ["x_dim0", "x_dim1"], "dtype": "float32"}
    assert plain["inputs"]["w"] == {"shape": ["w_dim0"], "dtype": "float32", "optional": True}


@pytest.mark.parametrize("name", ["", ".", "..", "../out", "a/b", "/etc/fib", "a\\b", "a\0b"])
def test_a_name_that_is_a_path_is_not_drafted(root: Path, name: str) -> None:
    assert not can_be_drafted(name)
    before = {path.name for path in root.parent.iterdir()}
    with enable_tracing(root, drafts=True) as runtime:
        apply(name, args=(torch.ones(2),), fallback=lambda x: None)
    assert not (root / "drafts").exists()
    assert {path.name for path in root.parent.iterdir()} == before
    assert any("unknown" in kind for kind in runtime.error_counts())


def test_a_draft_that_cannot_be_written_is_reported(root: Path) -> None:
    (root / "drafts").write_text("a file in its place")
    with enable_tracing(root, drafts=True) as runtime:
        apply("unknown", args=(torch.ones(2),), fallback=lambda x: None)
    assert errors_of(runtime, "unknown") == {"unknown: draft": 1}


def test_a_forked_child_drafts_its_own_calls(root: Path) -> None:
    @apply("unknown")
    def function(x: Any) -> None: ...

    with enable_tracing(root, drafts=True) as runtime:
        function(torch.ones(2, 4))
        child = os.fork()
        if child == 0:
            function(torch.ones(2, 5))
            runtime.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert drafted(root, "unknown")["axes"]["x_dim1"] == {"type": "const", "value": 5}
    assert drafted(root, "unknown")["axes"]["x_dim1"] == {"type": "const", "value": 4}
    assert "unknown" not in TraceSet.from_path(root).definitions


def test_a_function_that_is_never_called_leaves_no_draft(root: Path) -> None:
    @apply("unknown")
    def function(x: Any) -> None: ...

    with enable_tracing(root, drafts=True):
        pass
    assert not (root / "drafts").exists()
    assert function(1) is None
