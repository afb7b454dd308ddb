"""Fixtures: stand-ins for FlashInfer, imported again for each test; everything is restored after each test."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))

import flashinfer_stand_ins
from fib_apply import ApplyConfig, ApplyRuntime, disable_apply, set_apply_hook
from fib_integrations import install_flashinfer_integrations, installation, uninstall_flashinfer_integrations
from fib_schema import TraceSet
from flashinfer_stand_ins.examples import EXAMPLES, STRIDED, Example, passed, reference_solution


@pytest.fixture(scope="session", autouse=True)
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A build cache for this session, and no variables that enable anything."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(path))
        patch.delenv("FIB_ENABLE_APPLY", raising=False)
        patch.delenv("FIB_ENABLE_TRACING", raising=False)
        yield path


@pytest.fixture(autouse=True)
def _use_build_cache(build_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the cache of these tests again: in a run of several packages each has a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(build_cache))


@pytest.fixture(autouse=True)
def _reset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(installation, "_is_started", False)
    yield
    disable_apply()
    set_apply_hook(None)
    uninstall_flashinfer_integrations()


_OLDEST, *_LATER = flashinfer_stand_ins.VERSIONS


@pytest.fixture(scope="session", params=[pytest.param(_OLDEST, marks=pytest.mark.slow), *_LATER])
def version(request: pytest.FixtureRequest) -> str:
    """A version of FlashInfer."""
    return str(request.param)


@pytest.fixture(scope="session")
def stand_ins(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package ``flashinfer`` of one version."""
    return flashinfer_stand_ins.write(tmp_path_factory.mktemp("stand_ins"), version)


@pytest.fixture(scope="session")
def some_stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of one version, for tests that start a process."""
    return flashinfer_stand_ins.write(tmp_path_factory.mktemp("some"), flashinfer_stand_ins.VERSIONS[0])


@pytest.fixture
def importable(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the stand-ins importable."""
    _forget()
    monkeypatch.syspath_prepend(stand_ins)
    yield
    uninstall_flashinfer_integrations()
    _forget()


@pytest.fixture
def flashinfer(importable: None) -> Any:
    """The imported stand-ins."""
    return importlib.import_module("flashinfer")


Noted = Callable[[Example, Any], dict[str, Any]]


@pytest.fixture(scope="session")
def noted() -> Noted:
    """A function that makes an example's call and returns the inputs that a listener receives."""
    return _noted


def _noted(example: Example, flashinfer: Any) -> dict[str, Any]:
    seen: list[tuple[str, dict[str, Any]]] = []
    set_apply_hook(lambda name, inputs: seen.append((name, {n: _copied(x) for n, x in inputs.items()})))
    try:
        example.prepare(flashinfer)()
    finally:
        set_apply_hook(None)
    ((name, inputs),) = seen
    assert name == example.definition.name
    return inputs


def _copied(value: Any) -> Any:
    """A copy, because a call may write to its inputs."""
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="session")
def inputs_of_examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The definition inputs of each example's call, by the example's name."""
    folder = flashinfer_stand_ins.write(tmp_path_factory.mktemp("first"), flashinfer_stand_ins.VERSIONS[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        _forget()
        install_flashinfer_integrations()
        package = importlib.import_module("flashinfer")
        found = {example.name: _noted(example, package) for example in (*EXAMPLES, *STRIDED)}
        uninstall_flashinfer_integrations()
        _forget()
    return found


@pytest.fixture(scope="session")
def runtime_of(inputs_of_examples: dict[str, dict[str, Any]]) -> Callable[..., ApplyRuntime]:
    """A runtime in which solutions of one kind serve all examples; its solutions are built once."""

    @functools.cache
    def make(kind: str, **settings: Any) -> ApplyRuntime:
        definitions = {example.definition.name: example.definition for example in EXAMPLES}
        solutions = {name: (reference_solution(d, kind=kind),) for name, d in definitions.items()}
        traces: dict[str, list[Any]] = {name: [] for name in definitions}
        for example in (*EXAMPLES, *STRIDED):
            name = example.definition.name
            traces[name].append(passed(solutions[name][0], definitions[name], inputs_of_examples[example.name]))
        config = ApplyConfig(**settings)
        return ApplyRuntime(TraceSet(None, definitions, solutions, {}, traces), config, stats=True)

    return make


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def public_definitions() -> Path:
    """The definitions of the public data set."""
    configured = os.environ.get("FIB_TEST_DATASET")
    place = Path(configured) if configured else Path(__file__).parents[4] / "shared" / "flashinfer-trace"
    if not (place / "definitions").is_dir():
        pytest.skip("the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder")
    return place / "definitions"
