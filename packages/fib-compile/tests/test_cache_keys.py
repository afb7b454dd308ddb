"""Trials against the key of compiled libraries: whatever a compiler reads or runs makes another library."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_compile import BuilderRegistry, BuildError, TVMFFIBuilder
from fib_compile.compiler_environment import warn_of_ignored_variables
from fib_schema import CompileOptions, Definition, Solution

from .conftest import FAST_CPP

MakeSolution = Callable[..., Solution]
Value = Callable[..., float]
X = torch.zeros(1, 4)


@pytest.fixture
def value(definition: Definition, make_solution: MakeSolution) -> Value:
    """The value that a fresh builder's library of a source adds; the source may use the macro ``KV``."""

    def build(head: str = "", increment: str = "KV", **fields: object) -> float:
        text = head + FAST_CPP.replace("INCREMENT", increment)
        solution = make_solution({"kernel.cpp": text}, language="cpp", dps=True, **fields)
        return float(TVMFFIBuilder().build(definition, solution).call_value_returning(X)[0, 0])

    return build


def script(path: Path, text: str) -> Path:
    """An executable shell script, published by a rename as a package manager does."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(f"#!/bin/sh\n{text}\n")
    temporary.chmod(0o755)
    temporary.replace(path)
    return path


def program(path: Path, text: str) -> Path:
    """A compiled C program."""
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["cc", str(source), "-o", str(path)], check=True)
    return path


def header(folder: Path, number: int, name: str = "kv.h") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#define KV {number}\n")
    return path


def archive(folder: Path, number: int, name: str = "libkv.a") -> Path:
    """A static library whose function ``kv`` returns a number."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kv.c").write_text(f"int kv(void) {{ return {number}; }}\n")
    subprocess.run(["cc", "-fPIC", "-c", "kv.c", "-o", "kv.o"], cwd=folder, check=True)
    (folder / name).unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", name, "kv.o"], cwd=folder, check=True)
    return folder / name


INCLUDE = '#include "kv.h"\n'
LINKED = CompileOptions(ldflags=("-lkv",))


def test_flags_inside_cxx(value: Value, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3, 1):
        monkeypatch.setenv("CXX", f"c++ -DKV={number}")
        assert value() == number


@pytest.mark.parametrize("cache_only", [False, True])
def test_a_library_made_with_other_flags_is_not_used_without_a_compiler(
    value: Value, monkeypatch: pytest.MonkeyPatch, cache_only: bool
) -> None:
    monkeypatch.setenv("CXX", "c++ -DKV=1")
    value()
    monkeypatch.setenv("CXX", "c++ -DKV=2" if cache_only else "no-such-compiler -DKV=2")
    if cache_only:
        monkeypatch.setenv("FIB_CACHE_ONLY", "1")
    with pytest.raises(BuildError, match="holds no library that fits"):
        value()


@pytest.mark.parametrize("variable", ["CPLUS_INCLUDE_PATH", "CPATH"])
def test_search_paths_for_headers(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for number in (1, 2):
        monkeypatch.setenv(variable, str(header(tmp_path / str(number), number).parent))
        assert value(INCLUDE) == number


@pytest.mark.parametrize("keeps_mtime", [False, True])
def test_a_changed_header_outside_the_sources(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_mtime: bool
) -> None:
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    path = header(tmp_path, 1)
    assert value(INCLUDE) == 1
    before = path.stat()
    header(tmp_path, 2)
    if keeps_mtime:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert value(INCLUDE) == 2


def test_a_changed_header_that_is_included_by_its_absolute_path(value: Value, tmp_path: Path) -> None:
    for number in (1, 2):
        assert value(f'#include "{header(tmp_path, number)}"\n') == number


def test_a_new_header_that_hides_another(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    header(second, 2)
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", f"{first}:{second}")
    assert value(INCLUDE) == 2
    header(first, 1)
    assert value(INCLUDE) == 1


def test_a_changed_header_that_the_command_includes(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        monkeypatch.setenv("CXX", f"c++ -include {header(tmp_path, number)}")
        assert value() == number


def test_a_changed_file_of_flags(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (tmp_path / "flags").write_text(f"-DKV={number}\n")
        monkeypatch.setenv("CXX", f"c++ @{tmp_path / 'flags'}")
        assert value() == number


@pytest.mark.parametrize("condition", ["always", "only when it compiles"])
def test_a_changed_wrapper(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "wrapper"))
    for number in (1, 2):
        text = f'exec c++ -DKV={number} "$@"'
        if condition != "always":
            text = f'case "$*" in *" -c "*) {text};; esac\nexec c++ "$@"'
        script(tmp_path / "wrapper", text)
        assert value() == number


def test_a_changed_wrapper_behind_a_wrapper(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    monkeypatch.setenv("CXX", str(script(tmp_path / "outer", f'exec {inner} "$@"')))
    for number in (1, 2):
        script(inner, f'case "$*" in *" -c "*) exec c++ -DKV={number} "$@";; esac\nexec c++ "$@"')
        assert value() == number


def test_a_changed_compiler_behind_a_compiled_wrapper(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '#include <unistd.h>\nint main(int n, char **a) { (void)n; execvp("realcc", a); return 1; }\n'
    monkeypatch.setenv("CXX", str(program(tmp_path / "ccache", text)))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for number in (1, 2):
        script(tmp_path / "realcc", f'exec c++ -DKV={number} "$@"')
        assert value() == number


def test_a_link_to_another_compiler(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "cc"
    monkeypatch.setenv("CXX", str(link))
    for number in (1, 2):
        target = script(tmp_path / f"cc{number}", f'case "$*" in *-c*) set -- -DKV={number} "$@";; esac\nexec c++ "$@"')
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert value() == number


def test_a_variable_that_a_wrapper_reads_does_not_reach_it(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "wrapper", 'exec c++ -DKV="${SECRET:-7}" "$@"')))
    for number in (1, 2):
        monkeypatch.setenv("SECRET", str(number))
        assert value() == 7


def test_a_variable_that_is_passed_on_request(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "wrapper", 'exec c++ -DKV="${MINE:-7}" "$@"')))
    monkeypatch.setenv("FIB_COMPILER_VARIABLES", "MINE OTHER")
    for number in (1, 2):
        monkeypatch.setenv("MINE", str(number))
        assert value() == number


@pytest.mark.parametrize("variable", ["COMPILER_PATH", "GCC_EXEC_PREFIX"])
def test_another_program_inside_the_compiler(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    real = subprocess.run(["c++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True).stdout
    folder = str(Path(real).parent)
    for number in (1, 2, 3):
        place = tmp_path / str(number) if number < 3 else tmp_path / "2"
        place.mkdir(exist_ok=True)
        script(place / "cc1plus", f'exec {real.strip()} -DKV={number} "$@"')
        if variable == "GCC_EXEC_PREFIX":
            monkeypatch.setenv("CXX", f"c++ -B{place}/ -B{folder}/")
        monkeypatch.setenv(variable, f"{place}/")
        assert value() == number


def test_another_assembler(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = """
asm(".pushsection .data\\n.hidden kv\\n.globl kv\\nkv: .quad KVALUE\\n.popsection\\n");
extern "C" __attribute__((visibility("hidden"))) long kv;
"""
    path = os.environ["PATH"]
    real = shutil.which("as")
    for number in (1, 2, 3):
        folder = tmp_path / str(min(number, 2))
        folder.mkdir(exist_ok=True)
        script(folder / "as", f'exec {real} --defsym KVALUE={number} "$@"')
        monkeypatch.setenv("PATH", f"{folder}:{path}")
        assert value(head, "kv") == number


def test_search_paths_for_libraries(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        monkeypatch.setenv("LIBRARY_PATH", str(archive(tmp_path / str(number), number).parent))
        assert value('extern "C" int kv(void);\n', "kv()", compile_options=LINKED) == number


def test_a_changed_static_library(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    for number in (1, 2):
        archive(tmp_path, number)
        assert value('extern "C" int kv(void);\n', "kv()", compile_options=LINKED) == number


def test_the_machine_is_part_of_the_key(
    definition: Definition, fast_cpp: MakeSolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place() -> Path:
        return Path(TVMFFIBuilder().build(definition, fast_cpp()).metadata.misc["library"])

    here = place()
    target = "fib_compile._plan.machine"
    monkeypatch.setattr(target, lambda: "EM_AARCH64", raising=False)
    assert place().parent.parent != here.parent.parent


def test_a_header_that_was_missing_is_found_later(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    with pytest.raises(BuildError, match="does not compile"):
        value(INCLUDE)
    header(tmp_path, 5)
    assert value(INCLUDE) == 5


def test_an_error_in_a_header_outside_the_sources_is_not_final(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    (tmp_path / "kv.h").write_text("#define KV @\n")
    for _ in range(2):
        with pytest.raises(BuildError, match="does not compile"):
            value(INCLUDE)
    header(tmp_path, 5)
    assert value(INCLUDE) == 5


def test_an_optional_header_that_was_missing_is_found_later(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    head = '#if __has_include("kv.h")\n#include "kv.h"\n#else\n#error none\n#endif\n'
    with pytest.raises(BuildError, match="does not compile"):
        value(head)
    header(tmp_path, 5)
    assert value(head) == 5


def test_a_library_that_was_missing_is_found_later(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(BuildError, match="cannot find -lkv"):
            value('extern "C" int kv(void);\n', "kv()", compile_options=LINKED)
    archive(tmp_path, 4)
    assert value('extern "C" int kv(void);\n', "kv()", compile_options=LINKED) == 4


def test_an_undefined_function_that_a_library_defines_later(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    archive(tmp_path, 4)
    head = 'extern "C" int kw(void);\n'
    with pytest.raises(BuildError, match="undefined reference"):
        value(head, "kw()", compile_options=LINKED)
    (tmp_path / "kv.c").write_text("int kw(void) { return 6; }\n")
    subprocess.run("cc -fPIC -c kv.c && ar rcs libkv.a kv.o", shell=True, cwd=tmp_path, check=True)
    assert value(head, "kw()", compile_options=LINKED) == 6


def test_a_killed_compiler_is_not_final(value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's driver reports a killed program with its own exit code 1."""
    real = subprocess.run(["c++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True).stdout
    broken = tmp_path / "broken"
    broken.touch()
    script(
        tmp_path / "cc1plus", f'case "$*" in *kernel*) [ -e {broken} ] && kill -9 $$;; esac\nexec {real.strip()} "$@"'
    )
    monkeypatch.setenv("CXX", f"c++ -DKV=1 -B{tmp_path}")
    with pytest.raises(BuildError, match="does not compile"):
        value()
    broken.unlink()
    assert value() == 1


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize("variable", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"])
def test_flags_of_nvcc(
    definition: Definition, make_solution: MakeSolution, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0")
    solution = make_solution(
        {"kernel.cu": "#include <tvm/ffi/c_api.h>\n" 'extern "C" __attribute__((visibility("default"))) '
         "int __tvm_ffi_run() { return KV; }\n"}, language="cuda", dps=True,
    )  # fmt: skip
    libraries = set()
    for number in (1, 2):
        monkeypatch.setenv(variable, f"-DKV={number}")
        try:
            libraries.add(TVMFFIBuilder().build(definition, solution).metadata.misc["library"])
        except BuildError as error:
            pytest.skip(str(error)) if "libcudart" in str(error) else pytest.fail(str(error))
    assert len(libraries) == 2


def compiled(definition: Definition, solution: Solution) -> Path:
    """The library of a solution, which this process has not loaded."""
    [outcome] = BuilderRegistry([TVMFFIBuilder()]).build_many([(definition, solution)])
    assert outcome.error is None
    return max(TVMFFIBuilder().build_folder.glob("[!.]*/*/*.so"), key=lambda path: path.stat().st_mtime_ns)


def replace(library: Path, data: bytes) -> Path:
    """Give an entry another content that agrees with its manifest."""
    path = library.with_name("manifest.json")
    sha256 = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"size_bytes": len(data), "sha256": sha256}))
    library.unlink()
    new = library.with_name(library.name.replace(library.stem.rpartition("-")[2], sha256[:16]))
    new.write_bytes(data)
    return new


@pytest.mark.parametrize("content", ["no library", "half", "another machine", "a missing dependency"])
def test_a_library_that_does_not_load_is_compiled_again(
    definition: Definition, fast_cpp: MakeSolution, tmp_path: Path, content: str
) -> None:
    path = compiled(definition, fast_cpp(3))
    data = path.read_bytes()
    other = bytearray(data)
    other[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    contents = {"no library": b"nothing", "half": data[: len(data) // 2], "another machine": bytes(other)}
    if content == "a missing dependency":
        subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", "libgone.so"], cwd=tmp_path, check=True)
        command = ["cc", "-shared", "-x", "c", "/dev/null", "-o", "x.so", "-Wl,--no-as-needed", "-L.", "-lgone"]
        subprocess.run(command, cwd=tmp_path, check=True)
        contents[content] = (tmp_path / "x.so").read_bytes()
    replace(path, contents[content])

    assert torch.equal(TVMFFIBuilder().build(definition, fast_cpp(3)).call_value_returning(X), X + 3)


def test_a_library_that_never_loads_is_compiled_again_only_once(
    definition: Definition, make_solution: MakeSolution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.c").write_text("int gone(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "gone.c", "-o", "libgone.so"], cwd=tmp_path, check=True)
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    text = 'extern "C" int gone(void);\nextern "C" int __tvm_ffi_run() { return gone(); }\n'
    solution = make_solution(text, language="cpp", dps=True, compile_options=CompileOptions(ldflags=("-lgone",)))
    compilations: list[str] = []
    original = TVMFFIBuilder._compile

    def counted(self: TVMFFIBuilder, *args: Any, **options: Any) -> Any:
        compilations.append("one")
        return original(self, *args, **options)

    monkeypatch.setattr(TVMFFIBuilder, "_compile", counted)
    compiled(definition, solution)
    for _ in range(3):
        with pytest.raises(BuildError, match="does not load"):
            TVMFFIBuilder().build(definition, solution)
    assert len(compilations) == 2


def test_an_entry_in_the_place_of_another(definition: Definition, fast_cpp: MakeSolution) -> None:
    """As a restored backup may mix them."""
    one, two = (compiled(definition, fast_cpp(n)).parent for n in (1, 2))
    shutil.rmtree(one)
    two.rename(one)

    assert torch.equal(TVMFFIBuilder().build(definition, fast_cpp(1)).call_value_returning(X), X + 1)


@pytest.mark.parametrize("variable", ["CFLAGS", "CXXFLAGS", "LDFLAGS", "TORCH_CUDA_ARCH_LIST"])
def test_a_variable_that_is_ignored_is_named_once(
    value: Value, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    warn_of_ignored_variables.cache_clear()
    for number in (1, 2):
        monkeypatch.setenv(variable, f"-DKV={number}")
        assert value(f"#define KV {number}\n") == number
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [variable]
    warn_of_ignored_variables.cache_clear()
