"""The registry selects a builder, builds once, and names missing builders."""

import os
import subprocess
import sys
import threading

import attrs
import pytest
import torch
from compile_samples import ADD_ONE, make_solution
from fib_compile import Builder, BuilderRegistry, BuildError, PythonBuilder, Runnable, RunnableMetadata, TVMFFIBuilder
from fib_schema import TensorSpec
from fib_schema.settings import InvalidSetting

TEXT = "def run(x):\n    return x + 1\n"


class CountingBuilder(Builder):
    """Counts builds and builds nothing."""

    name = "counting"

    def __init__(self):
        super().__init__("counting_", "counting")
        self.count = 0
        self.cleaned: list[str] = []

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        self.count += 1
        if "fail" in solution.name:
            raise BuildError(solution.name, self.name, "fails")

        def clean():
            self.cleaned.append(solution.name)
            if "dirty" in solution.name:
                raise OSError("cannot be cleaned")

        return Runnable(print, RunnableMetadata("counting", definition.name, solution.name), clean)


def test_content_name_and_interface_each_make_another_runnable():
    builder = CountingBuilder()
    registry = BuilderRegistry([builder])
    solution = make_solution(TEXT)
    other = attrs.evolve(ADD_ONE, inputs={"x": TensorSpec(("n",), "float32")})

    variants = [
        registry.build(ADD_ONE, solution),
        registry.build(ADD_ONE, make_solution(TEXT + "#")),
        registry.build(ADD_ONE, make_solution(TEXT, name="other")),
        registry.build(other, solution),
    ]
    assert len(set(map(id, variants))) == builder.count == 4


def test_a_cleaned_runnable_is_built_again():
    registry = BuilderRegistry([CountingBuilder()])
    solution = make_solution(TEXT)
    runnable = registry.build(ADD_ONE, solution)
    runnable.cleanup()
    assert registry.build(ADD_ONE, solution) is not runnable


def test_cleanup_reaches_every_runnable_and_reports_failures():
    builder = CountingBuilder()
    registry = BuilderRegistry([builder])
    for name in ("a", "dirty", "b"):
        registry.build(ADD_ONE, make_solution(TEXT, name=name))
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="cannot be cleaned")):
        registry.cleanup()
    assert sorted(builder.cleaned) == ["a", "b", "dirty"]
    registry.cleanup()
    assert len(builder.cleaned) == 3


def test_threads_share_one_build():
    builder = CountingBuilder()
    registry = BuilderRegistry([builder])
    barrier = threading.Barrier(8)

    def work():
        barrier.wait(60)
        registry.build(ADD_ONE, make_solution(TEXT))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert builder.count == 1


def test_no_builder_lists_the_available_ones(monkeypatch):
    monkeypatch.setattr(TVMFFIBuilder, "unavailable_reason", staticmethod(lambda: "it is gone"))
    registry = BuilderRegistry([PythonBuilder()])
    with pytest.raises(BuildError) as caught:
        registry.build(ADD_ONE, make_solution("int x;", language="cpp"))
    text = str(caught.value)
    assert text.startswith("solution 'solution': no builder for language 'cpp' (available: python; ")
    assert "; tvm_ffi is unavailable: it is gone" in text


def test_the_reference_is_built_from_the_definition():
    registry = BuilderRegistry([PythonBuilder()])
    reference = registry.build_reference(ADD_ONE)
    assert torch.equal(reference(torch.zeros(1, 4)), torch.ones(1, 4))
    assert registry.build_reference(ADD_ONE) is reference
    registry.cleanup()


def test_a_registered_builder_comes_last_or_where_it_says():
    registry = BuilderRegistry([PythonBuilder()])
    registry.register(CountingBuilder())
    assert [builder.name for builder in registry.builders] == ["python", "counting"]
    registry = BuilderRegistry([PythonBuilder()])
    registry.register(CountingBuilder(), before="python")
    assert registry.build(ADD_ONE, make_solution(TEXT)).metadata.build_type == "counting"


def test_a_conflict_shows_both_sides():
    class Other(CountingBuilder):
        name = "other"

    registry = BuilderRegistry([CountingBuilder()])
    with pytest.raises(InvalidSetting) as caught:
        registry.register(Other())
    assert "Other: got 'counting_', expected another one than that of " in str(caught.value)
    assert "CountingBuilder" in str(caught.value)


MINE = "from fib_compile import PythonBuilder\n\n\nclass Mine(PythonBuilder):\n    name = 'mine'\n"
BROKEN = {
    "import error": ("import nothing_of_that_name\n", "ModuleNotFoundError"),
    "error at import": ("1 / 0\n", "ZeroDivisionError"),
    "exit at import": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "missing name": ("", "has no attribute 'Mine'"),
    "function": ("def Mine(): ...\n", "is of type 'function', and no subclass of fib_compile.Builder"),
    "other class": ("class Mine: ...\n", "no subclass of fib_compile.Builder"),
    "abstract": ("from fib_compile import Builder\nclass Mine(Builder): ...\n", "TypeError"),
    "arguments": (MINE + "    def __init__(self, x): ...\n", "TypeError"),
    "error at start": (MINE + "    def __init__(self): raise OSError('no licence')\n", "OSError: no licence"),
    "error when asked": (MINE + "    @staticmethod\n    def unavailable_reason(): 1 / 0\n", "ZeroDivisionError"),
    "no name": (MINE.replace("'mine'", "None"), ":Mine is None; it must be a name"),
    "duplicate name": (
        MINE.replace("'mine'", "'python'"),
        "got 'python', expected another one than that of fib_compile.",
    ),
}


def registry_with(write_distribution, folder, **plugins):
    """Install plugins, each a distribution of its own; what a new process logs, then the names of its builders."""
    for name, text in plugins.items():
        write_distribution(folder, name, f"[fib_compile.builders]\n{name}-builder = {name}:Mine\n")
        (folder / f"{name}.py").write_text(text)
    code = "from fib_compile import *; print([b.name for b in BuilderRegistry.get_instance().builders])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [done.stderr, done.stdout.strip()]


def test_entry_points_add_builders(tmp_path, write_distribution):
    log, names = registry_with(write_distribution, tmp_path, plugin=MINE)
    assert log == ""
    assert names.endswith("'torch', 'mine']")


def test_broken_entry_points_cost_only_themselves_and_name_their_distributions(tmp_path, write_distribution):
    plugins = {f"broken{index}": text for index, (text, _) in enumerate(BROKEN.values())}
    log, names = registry_with(write_distribution, tmp_path, plugin=MINE, **plugins)
    assert names.endswith("'torch', 'mine']")
    lines = log.splitlines()
    assert len(lines) == len(BROKEN)
    for name, (_, problem) in zip(plugins, BROKEN.values(), strict=True):
        head = f"builder of entry point '{name}-builder' ({name}:Mine) of distribution '{name}' 1.0 is skipped: "
        assert [line for line in lines if line.startswith(head) and problem in line], problem
