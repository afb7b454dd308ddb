"""TVMFFIBuilder compiles C++ once, verifies cached libraries, and explains failures."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compile_samples import ADD_ONE, SUBTRACT, fast_cpp, make_solution, wrapped_compiler
from fib_compile import BuildError, TVMFFIBuilder
from fib_compile.cache import ArtifactStore, discard, read_entry
from fib_schema import CompileOptions, format_json

X = torch.zeros(2, 4)

KERNEL = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include "scale/factor.h"

namespace ffi = tvm::ffi;

void AddOne(ffi::TensorView x, ffi::TensorView y) {
  const float* from = static_cast<float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] + FACTOR;
}

ffi::Tensor Same(ffi::Tensor x) { return x; }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, AddOne);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(same, Same);
"""


@pytest.fixture
def compiled(monkeypatch):
    """The keys that were compiled, in order."""
    keys = []
    add = ArtifactStore.add

    def counted(self, key, *args):
        keys.append(key)
        return add(self, key, *args)

    monkeypatch.setattr(ArtifactStore, "add", counted)
    return keys


def failure(solution):
    with pytest.raises(BuildError) as caught:
        TVMFFIBuilder().build(ADD_ONE, solution)
    return caught.value


def library(runnable):
    return Path(runnable.metadata.misc["library"])


def test_cpp_and_cuda_without_a_torch_binding_are_built():
    def takes(language, binding):
        return TVMFFIBuilder().can_build(make_solution("", language=language, binding=binding))

    assert takes("cpp", None)
    assert takes("cuda", "tvm-ffi")
    assert not takes("cpp", "torch")
    assert not takes("python", None)


FILES = {"src/kernel.cpp": KERNEL, "scale/factor.h": "#define FACTOR 1\n"}
QUICK = CompileOptions(["-O0"])  # TVM-FFI's C++ headers take 2 s to compile


@pytest.mark.slow
def test_a_real_kernel_with_a_header_in_a_folder():
    solution = make_solution(FILES, language="cpp", dps=True, compile_options=QUICK)
    runnable = TVMFFIBuilder().build(ADD_ONE, solution)
    assert torch.equal(runnable.call_value_returning(X), X + 1)
    y = torch.empty(2, 4)
    runnable(X, y)
    assert torch.equal(y, X + 1)


def test_a_missing_function_lists_what_is_exported():
    error = failure(fast_cpp(entry="kernel.cpp::rnu"))
    assert error.problem == "the library has no function 'rnu'; it exports run"


def test_a_compiler_error_is_shown_with_its_command_and_log():
    error = failure(make_solution("int run() {\n  return 1\n}\n", language="cpp"))
    assert error.problem == "does not compile"
    assert error.details[0].startswith("kernel.cpp:2:11: error: expected ';'")
    assert error.exit_code == 1
    assert "-c kernel.cpp" in error.command
    assert "expected ';'" in Path(error.log_path).read_text()


def test_a_failure_is_recorded_for_the_same_compiler(monkeypatch):
    solution = make_solution("int run() { return 1 }\n", language="cpp")
    first = failure(solution)
    monkeypatch.setattr("fib_compile._compile.compile_library", None)  # would fail if it were called
    again = failure(solution)
    assert "known from an earlier build" in again.problem
    assert (again.details, again.command, again.exit_code) == (first.details, first.command, first.exit_code)
    assert Path(again.log_path).exists()


@pytest.mark.parametrize(("message", "code"), [("cc1plus: out of memory", 1), ("error: x", 137)])
def test_a_failure_of_the_machine_is_not_recorded(tmp_path, monkeypatch, message, code):
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("CXX", wrapped_compiler(tmp_path, f"[ -e {broken} ] && echo '{message}' && exit {code}"))
    assert failure(fast_cpp()).exit_code == code
    broken.unlink()
    assert torch.equal(TVMFFIBuilder().build(ADD_ONE, fast_cpp()).call_value_returning(X), X + 1)


def test_nothing_to_compile_is_a_build_error():
    error = failure(make_solution({"k.h": ""}, language="cpp"))
    assert error.problem == "has nothing to compile among its sources (k.h)"


def test_the_key_covers_builder_abi_and_interface(monkeypatch):
    def key(definition, solution):
        return TVMFFIBuilder()._plan(definition, solution).key

    keys = {key(ADD_ONE, fast_cpp()), key(SUBTRACT, fast_cpp()), key(ADD_ONE, fast_cpp(2))}
    monkeypatch.setattr(TVMFFIBuilder, "version", 99)
    keys.add(key(ADD_ONE, fast_cpp()))
    monkeypatch.setattr(TVMFFIBuilder, "abi", lambda self: "another")
    keys.add(key(ADD_ONE, fast_cpp()))
    assert len(keys) == 5


def test_without_a_compiler_a_published_library_is_used(monkeypatch):
    built = TVMFFIBuilder().build(ADD_ONE, fast_cpp())
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library(TVMFFIBuilder().build(ADD_ONE, fast_cpp())) == library(built)
    assert "CXX: 'no-such-compiler' cannot be run" in str(failure(fast_cpp(2)))


def test_a_published_library_that_does_not_load_is_skipped(monkeypatch):
    built = library(TVMFFIBuilder().build(ADD_ONE, fast_cpp()))
    monkeypatch.setenv("FIB_CACHE_ONLY", "1")
    entry = read_entry(built.parent)
    unloadable = built.with_name("other.so")
    unloadable.write_bytes(b"no library for this machine")
    store = ArtifactStore(TVMFFIBuilder().build_folder)
    store.add(built.parent.parent.name, "0", unloadable, entry.facts, entry.inputs)
    assert library(TVMFFIBuilder().build(ADD_ONE, fast_cpp())) == built
    discard(built.parent)
    with pytest.raises(BuildError, match="does not load"):
        TVMFFIBuilder().build(ADD_ONE, fast_cpp())


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_library_never_reaches_the_loader(compiled, damage):
    path = library(TVMFFIBuilder().build(ADD_ONE, fast_cpp(3)))
    data = path.read_bytes()
    manifest = path.with_name("manifest.json")
    copy = path.with_name("copy")  # a loaded library stays mapped: replace the file
    copy.write_bytes(data[:-100] if damage == "truncate" else data[:200] + bytes(8) + data[208:])
    match damage:
        case "remove":
            path.unlink()
        case "manifest":
            manifest.write_text("{")
        case _:
            copy.replace(path)

    again = TVMFFIBuilder().build(ADD_ONE, fast_cpp(3))
    assert torch.equal(again.call_value_returning(X), X + 3)
    assert library(again).read_bytes() == data or library(again).stat().st_size == len(data)
    assert len(compiled) == 2


CHILD = """
import sys
from fib_compile import BuilderRegistry, TVMFFIBuilder
from fib_schema import Definition, Solution, parse_json

definition, solution = sys.stdin.read().split("\\0")
pair = parse_json(definition, Definition), parse_json(solution, Solution)
[outcome] = BuilderRegistry([TVMFFIBuilder()]).build_many([pair])  # loads nothing, so that no process imports torch
print(outcome.state)
"""


def start(solution):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", CHILD], **pipes)
    child.stdin.write(f"{format_json(ADD_ONE)}\0{format_json(solution)}")
    child.stdin.close()
    child.stdin = None
    return child


def test_processes_compile_a_solution_once(tmp_path, monkeypatch):
    count = tmp_path / "count"
    monkeypatch.setenv("CXX", wrapped_compiler(tmp_path, f"echo >> {count}"))
    children = [start(fast_cpp()) for _ in range(3)]

    states = sorted(child.communicate(timeout=300)[0].strip() for child in children)
    assert states == ["built", "cached", "cached"]
    assert count.read_text() == "\n"
    assert torch.equal(TVMFFIBuilder().build(ADD_ONE, fast_cpp()).call_value_returning(X), X + 1)
    assert count.read_text() == "\n"
