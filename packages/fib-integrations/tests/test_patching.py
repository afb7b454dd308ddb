"""Patches: made now or at import, once, put back exactly, beside those of others."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fib_integrations.patching import PatchManager, PatchSpec, State

SOURCE = '''
import functools


def double(x, *, times=2):
    """Twice."""
    return x * times


class Tool:
    scale = 10

    def use(self, x, plain=False):
        return x if plain else x * self.scale

    begin = use
    use_plainly = functools.partialmethod(use, plain=True)

    @staticmethod
    def fixed(x):
        return x


class Sharper(Tool):
    pass
'''


@pytest.fixture
def library(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a library that can be imported, and is not yet."""
    name = f"library_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def manager() -> Iterator[PatchManager]:
    made = PatchManager()
    yield made
    made.unpatch_all()


def plus_one(spec: PatchSpec, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that its results are larger by one."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) + 1

    return wrapper


def imported(name: str) -> Any:
    return __import__(name)


def state(manager: PatchManager, path: str) -> State:
    return next(status.state for status in manager.status() if status.path == path)


def test_before_the_import(library: str, manager: PatchManager) -> None:
    assert not manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert state(manager, f"{library}.double") is State.WAITING
    assert library not in sys.modules
    module = imported(library)
    assert module.double(3) == 7
    assert state(manager, f"{library}.double") is State.INSTALLED


def test_after_the_import(library: str, manager: PatchManager) -> None:
    module = imported(library)
    assert manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert module.double(3) == 7


def test_twice_is_once(library: str, manager: PatchManager) -> None:
    module = imported(library)
    for _ in range(3):
        assert manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert module.double(3) == 7


def test_everything_is_put_back(library: str, manager: PatchManager) -> None:
    module = imported(library)
    before = {name: dict(vars(owner)) for name, owner in (("module", module), ("Tool", module.Tool))}
    sharper = dict(vars(module.Sharper))
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    manager.patch(PatchSpec(f"{library}.Tool.use", "method"), plus_one)
    manager.patch(PatchSpec(f"{library}.Sharper.use", "method"), plus_one)
    assert module.Tool().use(1) == 11
    manager.unpatch_all()
    assert {name: dict(vars(owner)) for name, owner in (("module", module), ("Tool", module.Tool))} == before
    assert dict(vars(module.Sharper)) == sharper
    assert manager.status() == ()


def test_it_can_be_patched_anew(library: str, manager: PatchManager) -> None:
    module = imported(library)
    for _ in range(3):
        manager.patch(PatchSpec(f"{library}.double"), plus_one)
        assert module.double(3) == 7
        manager.unpatch_all()
        assert module.double(3) == 6


def test_other_names_of_a_method_in_its_class(library: str, manager: PatchManager) -> None:
    manager.patch(PatchSpec(f"{library}.Tool.use", "method"), plus_one)
    tool = imported(library).Tool()
    assert (tool.use(1), tool.begin(1), tool.use_plainly(1)) == (11, 11, 2)
    manager.unpatch_all()
    assert (tool.use(1), tool.begin(1), tool.use_plainly(1)) == (10, 10, 1)


def test_names_that_other_modules_have_imported(library: str, manager: PatchManager) -> None:
    double = imported(library).double
    engine = types.ModuleType("an_engine")
    engine.twice = double  # type: ignore[attr-defined]
    sys.modules["an_engine"] = engine
    try:
        manager.patch(PatchSpec(f"{library}.double"), plus_one)
        manager.rebind_aliases()
        assert engine.twice(3) == 7
        (status,) = manager.status()
        assert "an_engine.twice" in status.aliases
        engine.later = imported(library).double  # type: ignore[attr-defined]
        manager.unpatch_all()
        assert engine.twice is double
        assert engine.later is double
    finally:
        del sys.modules["an_engine"]


def test_what_cannot_be_rebound_is_told(library: str, manager: PatchManager, caplog: pytest.LogCaptureFixture) -> None:
    held = [imported(library).double]
    manager.patch(PatchSpec(f"{library}.double", name="doubling"), plus_one)
    manager.rebind_aliases()
    assert held[0](3) == 6
    (status,) = manager.status()
    assert any("a list" in holder for holder in status.holders)
    assert len(status.holders) <= 2
    assert "doubling: calls through a list" in caplog.text


def test_a_patch_of_others_before_ours(library: str, manager: PatchManager) -> None:
    module = imported(library)
    theirs = plus_one(PatchSpec(""), module.double)
    module.double = theirs
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert module.double(3) == 8
    manager.unpatch_all()
    assert module.double is theirs


def test_a_patch_of_others_after_ours_stays(library: str, manager: PatchManager) -> None:
    module = imported(library)
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    theirs = module.double = plus_one(PatchSpec(""), module.double)
    manager.unpatch_all()
    assert module.double is theirs
    assert state(manager, f"{library}.double") is State.BURIED
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert module.double is theirs  # ours is still below
    assert state(manager, f"{library}.double") is State.INSTALLED


def test_what_is_absent_is_passed_by_and_seen(library: str, manager: PatchManager) -> None:
    imported(library)
    assert not manager.patch(PatchSpec(f"{library}.triple"), plus_one)
    assert not manager.patch(PatchSpec(f"{library}.Missing.use", "method"), plus_one)
    assert [status.state for status in manager.status()] == [State.ABSENT, State.ABSENT]
    assert manager.status()[0].detail == f"{library} has no triple"


def test_a_module_that_never_comes(manager: PatchManager) -> None:
    assert not manager.patch(PatchSpec("no_such_library_at_all.double"), plus_one)
    assert manager.status()[0].state is State.WAITING


def test_static_methods_are_not_patched(library: str, manager: PatchManager) -> None:
    imported(library)
    assert not manager.patch(PatchSpec(f"{library}.Tool.fixed", "method"), plus_one)
    assert manager.status()[0].state is State.UNSUITABLE
    assert "staticmethod" in manager.status()[0].detail


def test_an_import_does_not_fail_for_a_patch_that_cannot_be_made(library: str, manager: PatchManager) -> None:
    def failing(spec: PatchSpec, original: Callable[..., Any]) -> Callable[..., Any]:
        raise ValueError("another library than expected")

    manager.patch(PatchSpec(f"{library}.double"), failing)
    assert imported(library).double(3) == 6
    assert manager.status()[0].detail == "another library than expected"


def test_signatures_and_names_are_the_originals(library: str, manager: PatchManager) -> None:
    module = imported(library)
    signature = inspect.signature(module.double)
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert inspect.signature(module.double) == signature
    assert (module.double.__name__, module.double.__doc__) == ("double", "Twice.")
