"""Shared factories: one definition, its solutions and traces."""

import os
import sys
from pathlib import Path

import pytest
from fib_apply import ApplyKeyFactory, disable_apply, hook
from fib_apply.build_service import service
from fib_apply.routing import call_sites, dispatcher, slow_path
from fib_apply.routing.native import module
from fib_apply.routing.native.module import NATIVE_VARIABLE
from fib_compile import BuilderRegistry, Limits
from fib_schema.files import private_folder

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def _reset_process_state():
    """Remove what a test leaves in the process: runtimes, listeners, call sites, key builders, loaded solutions."""
    key_builders, sites = ApplyKeyFactory._builders, set(call_sites._sites)
    yield
    disable_apply()
    hook.set_apply_hook(None)
    hook._listeners = ()
    for site in set(call_sites._sites) - sites:
        call_sites._sites.discard(site)
    ApplyKeyFactory._builders = key_builders
    BuilderRegistry._instance = None


@pytest.fixture(scope="session", autouse=True)
def build_cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(path))
        patch.setenv(NATIVE_VARIABLE, os.environ.get(NATIVE_VARIABLE, "0"))  # also without the repository's conftest
        yield path


@pytest.fixture
def without_probes(monkeypatch):
    """Load solutions of tests without a child process that tries them, which takes two seconds for each."""

    def trust(pairs, **others):
        del others
        return {solution.name: None for _, solution in pairs}

    monkeypatch.setattr(service, "probe", trust)


@pytest.fixture
def cache_path(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(path))
    return path


@pytest.fixture
def capturing(monkeypatch):
    """A flag that says on the CPU that a capture is under way."""
    flag = [False]
    for importer in (dispatcher, slow_path):  # the former imports the function of the latter
        monkeypatch.setattr(importer, "is_capturing", lambda device: flag[0])
    return flag


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory):
    """The folder of the native module, built once by all test processes, or kept in ``FIB_APPLY_TEST_CACHE``."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = private_folder(Path(os.environ.get("FIB_APPLY_TEST_CACHE") or root / "native"))
    module.build_guards(folder, Limits())
    return folder


@pytest.fixture(scope="session")
def native_module(native_folder):
    return module.import_guards(module.build_guards(native_folder, Limits()))


@pytest.fixture
def native_guards(native_module, monkeypatch):
    """Native guards, used by all routes that a test makes."""
    monkeypatch.setattr(module._state, "guards", native_module)
    return native_module


@pytest.fixture(autouse=True)
def _use_native_guards(request):
    """Run all tests with native guards if the environment asks for it."""
    if os.environ.get(NATIVE_VARIABLE) == "1":
        request.getfixturevalue("native_guards")


@pytest.fixture(autouse=True)
def _use_build_cache(build_cache, monkeypatch):
    """Set the cache of these tests again: in a run of several packages each has a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(build_cache))


@pytest.fixture(params=["python", "native"])
def guards(request):
    """Both kinds of guards, whatever the environment asks for."""
    if request.param == "native":
        request.getfixturevalue("native_guards")
    return str(request.param)
