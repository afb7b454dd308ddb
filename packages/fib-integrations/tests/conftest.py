"""Fixtures: stand-ins for FlashInfer, imported again for each test; everything is restored after each test."""

import functools
import importlib
import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))

import engine_stand_ins
import flashinfer_stand_ins
from fib_apply import ApplyConfig, ApplyRuntime, disable_apply, set_apply_hook
from fib_integrations import install_flashinfer_integrations, installation, uninstall_flashinfer_integrations
from fib_schema import TraceSet
from flashinfer_stand_ins.examples import EXAMPLES, STRIDED, passed, reference_solution


@pytest.fixture(scope="session", autouse=True)
def build_cache(tmp_path_factory):
    """A build cache for this session, and no variables that enable anything."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(path))
        patch.delenv("FIB_ENABLE_APPLY", raising=False)
        patch.delenv("FIB_ENABLE_TRACING", raising=False)
        yield path


@pytest.fixture(autouse=True)
def _use_build_cache(build_cache, monkeypatch):
    """Set the cache of these tests again: in a run of several packages each has a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(build_cache))


@pytest.fixture(autouse=True)
def _reset(monkeypatch):
    monkeypatch.setattr(installation, "_is_started", False)
    yield
    disable_apply()
    set_apply_hook(None)
    uninstall_flashinfer_integrations()


_OLDEST, *_LATER = flashinfer_stand_ins.VERSIONS


@pytest.fixture(scope="session", params=[pytest.param(_OLDEST, marks=pytest.mark.slow), *_LATER])
def version(request):
    return str(request.param)


@pytest.fixture(scope="session")
def stand_ins(version, tmp_path_factory):
    return flashinfer_stand_ins.write(tmp_path_factory.mktemp("stand_ins"), version)


@pytest.fixture(scope="session")
def some_stand_ins(tmp_path_factory):
    """Stand-ins of one version, for tests that start a process."""
    return flashinfer_stand_ins.write(tmp_path_factory.mktemp("some"), flashinfer_stand_ins.VERSIONS[0])


@pytest.fixture
def importable(stand_ins, monkeypatch):
    _forget()
    monkeypatch.syspath_prepend(stand_ins)
    yield
    uninstall_flashinfer_integrations()
    _forget()


@pytest.fixture
def flashinfer(importable):
    return importlib.import_module("flashinfer")


@pytest.fixture
def fi(flashinfer):
    """The patched stand-ins, which count unsupported calls."""
    install_flashinfer_integrations(count_calls=True)
    return flashinfer


@pytest.fixture
def versions(monkeypatch):
    """The installed versions of engines, which a test may change."""
    found, original = {"vllm": "0.26.0", "sglang": "0.5.17", "sglang-kernel": "0.4.5"}, importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found.get(name) or original(name))
    return found


@pytest.fixture
def modules(versions):
    with engine_stand_ins.modules() as made:
        yield made


@pytest.fixture(scope="session")
def noted():
    """A function that makes an example's call and returns the inputs that a listener receives."""
    return _noted


def _noted(example, flashinfer):
    seen = []
    set_apply_hook(lambda name, inputs: seen.append((name, {n: _copied(x) for n, x in inputs.items()})))
    try:
        example.prepare(flashinfer)()
    finally:
        set_apply_hook(None)
    ((name, inputs),) = seen
    assert name == example.definition.name
    return inputs


def _copied(value):
    """A copy, because a call may write to its inputs."""
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="session")
def inputs_of_examples(tmp_path_factory):
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
def runtime_of(inputs_of_examples):
    """A runtime in which solutions of one kind serve all examples; its solutions are built once."""

    @functools.cache
    def make(kind, **settings):
        definitions = {example.definition.name: example.definition for example in EXAMPLES}
        solutions = {name: (reference_solution(d, kind=kind),) for name, d in definitions.items()}
        traces = {name: [] for name in definitions}
        for example in (*EXAMPLES, *STRIDED):
            name = example.definition.name
            traces[name].append(passed(solutions[name][0], definitions[name], inputs_of_examples[example.name]))
        config = ApplyConfig(**settings)
        return ApplyRuntime(TraceSet(None, definitions, solutions, {}, traces), config, stats=True)

    return make


def _forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def public_definitions():
    configured = os.environ.get("FIB_TEST_DATASET")
    place = Path(configured) if configured else Path(__file__).parents[4] / "shared" / "flashinfer-trace"
    if not (place / "definitions").is_dir():
        pytest.skip("the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder")
    return place / "definitions"
