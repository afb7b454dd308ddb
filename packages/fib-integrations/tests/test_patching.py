"""Patch manager: patches now or at import, once, restores exactly, and coexists with other patches."""

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import subprocess
import sys
import types

import pytest
from fib_integrations.patching import PatchManager, PatchSpec, PatchState

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
def library(tmp_path, monkeypatch):
    """The name of a library that is importable and not imported."""
    name = f"library_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def manager():
    made = PatchManager()
    yield made
    made.unpatch_all()


def plus_one(spec, original):
    """Wraps a function so that its results are larger by one."""

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return original(*args, **kwargs) + 1

    return wrapper


def imported(name):
    return __import__(name)


def state(manager, path):
    return next(status.state for status in manager.status() if status.path == path)


def test_patch_before_the_import(library, manager):
    assert not manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert state(manager, f"{library}.double") is PatchState.PENDING
    assert library not in sys.modules
    module = imported(library)
    assert module.double(3) == 7
    assert state(manager, f"{library}.double") is PatchState.INSTALLED


def test_unpatching_restores_everything(library, manager):
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


def test_a_second_patch_changes_nothing_and_a_restored_function_can_be_patched(library, manager):
    module = imported(library)
    for _ in range(2):
        for _ in range(2):
            assert manager.patch(PatchSpec(f"{library}.double"), plus_one)
        assert module.double(3) == 7
        manager.unpatch_all()
        assert module.double(3) == 6


def test_other_names_of_a_method_are_rebound(library, manager):
    manager.patch(PatchSpec(f"{library}.Tool.use", "method"), plus_one)
    tool = imported(library).Tool()
    assert (tool.use(1), tool.begin(1), tool.use_plainly(1)) == (11, 11, 2)
    manager.unpatch_all()
    assert (tool.use(1), tool.begin(1), tool.use_plainly(1)) == (10, 10, 1)


def test_names_in_other_modules_are_rebound(library, manager):
    double = imported(library).double
    engine = types.ModuleType("an_engine")
    engine.twice = double
    sys.modules["an_engine"] = engine
    try:
        manager.patch(PatchSpec(f"{library}.double"), plus_one)
        manager.rebind_aliases()
        assert engine.twice(3) == 7
        (status,) = manager.status()
        assert "an_engine.twice" in status.aliases
        engine.later = imported(library).double
        manager.unpatch_all()
        assert engine.twice is double
        assert engine.later is double
    finally:
        del sys.modules["an_engine"]


def test_patch_below_ours_is_restored(library, manager):
    module = imported(library)
    theirs = plus_one(PatchSpec(""), module.double)
    module.double = theirs
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert module.double(3) == 8
    manager.unpatch_all()
    assert module.double is theirs


def test_patch_on_top_of_ours_stays(library, manager):
    module = imported(library)
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    theirs = module.double = plus_one(PatchSpec(""), module.double)
    manager.unpatch_all()
    assert module.double is theirs
    assert manager.status() == ()
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert state(manager, f"{library}.double") is PatchState.INSTALLED
    manager.unpatch_all()
    assert module.double is theirs


def test_a_module_that_was_imported_anew_is_patched(library, manager):
    spec = PatchSpec(f"{library}.double")
    old = imported(library)
    manager.patch(spec, plus_one)
    old.double = functools.partial(old.double)
    manager.unpatch_all()
    del sys.modules[library]
    new = imported(library)
    assert manager.patch(spec, plus_one)
    assert (new.double(2), manager.status()[0].state) == (5, PatchState.INSTALLED)


def test_missing_functions_are_reported(library, manager):
    imported(library)
    assert not manager.patch(PatchSpec(f"{library}.triple"), plus_one)
    assert not manager.patch(PatchSpec(f"{library}.Missing.use", "method"), plus_one)
    assert [status.state for status in manager.status()] == [PatchState.MISSING, PatchState.MISSING]
    assert manager.status()[0].detail == f"{library} has no triple"


def test_static_methods_are_not_patched(library, manager):
    imported(library)
    assert not manager.patch(PatchSpec(f"{library}.Tool.fixed", "method"), plus_one)
    assert manager.status()[0].state is PatchState.INCOMPATIBLE
    assert "staticmethod" in manager.status()[0].detail


def test_import_succeeds_if_the_wrapper_factory_raises(library, manager):
    def failing(spec, original):
        raise ValueError("another library than expected")

    manager.patch(PatchSpec(f"{library}.double"), failing)
    assert imported(library).double(3) == 6
    assert manager.status()[0].detail == "another library than expected"


def test_wrapper_has_the_signature_and_name_of_the_original(library, manager):
    module = imported(library)
    signature = inspect.signature(module.double)
    manager.patch(PatchSpec(f"{library}.double"), plus_one)
    assert inspect.signature(module.double) == signature
    assert (module.double.__name__, module.double.__doc__) == ("double", "Twice.")


THREADS = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from fib_integrations.patching import PatchManager, PatchSpec

manager = PatchManager()
manager.patch(PatchSpec("slow_package.part.double"), lambda spec, original: lambda x: original(x) + 1)
begun, may_go_on = threading.Event(), threading.Event()
sys.modules["meanwhile"] = type(sys)("meanwhile")
sys.modules["meanwhile"].wait = lambda: (begun.set(), may_go_on.wait(300))
first = threading.Thread(target=lambda: __import__("slow_package"))
first.start()
begun.wait(300)
second = threading.Thread(target=lambda: __import__("slow_package.part"))
second.start()
second.join(0.5)  # it waits for the package now
may_go_on.set()
for thread in (first, second):
    thread.join(300)
import slow_package
print(first.is_alive(), second.is_alive(), slow_package.double(3), slow_package.part.double(3))
"""


def test_two_threads_may_import_a_patched_package(tmp_path):
    """One is importing the package while the other one imports a submodule."""
    folder = tmp_path / "slow_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("import meanwhile\nmeanwhile.wait()\nfrom .part import double\n")
    (folder / "part.py").write_text("def double(x):\n    return 2 * x\n")
    command = [sys.executable, "-X", "faulthandler", "-c", THREADS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["False", "False", "7", "7"], done.stderr


@pytest.mark.parametrize("is_failing", [False, True])
def test_module_that_is_being_imported_is_patched_afterwards(is_failing, tmp_path, monkeypatch, manager):
    """As a library whose first import is torch, when a start-up hook installs the adapters at the import of torch."""
    name = f"halfway_{is_failing}"
    source = f"import during\nduring.install()\n{SOURCE}\nduring.take(double)\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    during = types.ModuleType("during")
    monkeypatch.setitem(sys.modules, "during", during)
    failures = [ValueError("not yet")] if is_failing else []

    def take(function):
        during.taken = function
        if failures:
            raise failures.pop()

    during.take = take
    during.install = lambda: manager.patch(PatchSpec(f"{name}.double"), plus_one)
    try:
        if is_failing:
            with pytest.raises(ValueError, match="not yet"):
                imported(name)
            assert state(manager, f"{name}.double") is PatchState.PENDING
        module = imported(name)
        assert module.double(3) == 7
        assert during.taken is module.double or is_failing  # the second import is one like others
        assert type(module.__spec__) is importlib.machinery.ModuleSpec
        manager.unpatch_all()
        assert (module.double(3), during.taken(3)) == (6, 6)
        assert during.taken is module.double
    finally:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", ["builtins.str.upper", "odd_library.Slotted.use", "odd_library.made_when_asked"])
def test_functions_that_cannot_be_patched(path, manager, monkeypatch):
    class Slotted:
        __slots__ = ()

        def use(self): ...

    def made(name):
        raise RuntimeError(f"{name} needs a device")

    odd = types.ModuleType("odd_library")
    odd.Slotted, odd.__getattr__ = Slotted(), made
    monkeypatch.setitem(sys.modules, "odd_library", odd)
    kind = "method" if path.count(".") == 2 else "function"
    assert not manager.patch(PatchSpec(path, kind), plus_one)
    assert manager.status()[0].state in (PatchState.INCOMPATIBLE, PatchState.MISSING)


def test_second_owner_of_a_patch_is_warned(library, manager, caplog):
    imported(library)
    manager.patch(PatchSpec(f"{library}.double", ctx_key="first"), plus_one)
    manager.patch(PatchSpec(f"{library}.double", ctx_key="second"), plus_one)
    assert "double is not patched for 'second': 'first' has it" in caplog.text
